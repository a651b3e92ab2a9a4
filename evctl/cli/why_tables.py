"""Why a request, a node, the split or a block is as it is, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from evctl.cli.moments import ago, left
from evctl.cli.output import folded, number_of, seconds, table
from evctl.cli.plan_table import decision_text, forecast_text

if TYPE_CHECKING:
    from evctl.core.status import EventRecord
    from evctl.core.why import (
        BlockWhy,
        NodeRequest,
        NodeWhy,
        PlanOutcome,
        RequestWhy,
        RoutingDecision,
        SplitWhy,
    )

PREFILL_TERMS: Final = {
    "total_s": "TOTAL",
    "remaining_s": "RUNNING",
    "queued_s": "QUEUED",
    "own_s": "OWN",
    "fetch_s": "FETCH",
    "exposed_s": "EXPOSED",
    "displaced_s": "MAKE ROOM",
    "interfering_s": "DISTURBS",
    "cached_tokens": "CACHED",
    "uncached_tokens": "NEW",
    "fetch_blocks": "BLOCKS",
}
"""Terms that have a name of their own; others are shown by theirs."""
SELDOM: Final = {"fetch_s", "exposed_s", "displaced_s", "fetch_blocks"}
"""Terms that are left out where they are 0 on every node."""
MODELS: Final = {
    "fitted": "fitted to what it did",
    "kept": "kept from an earlier life: no warm-up",
    "borrowed": "a phase borrowed of a node like it",
    "prior": "none yet: it goes by rough times",
}
"""Of execution times, by where it comes from."""
WARMING: Final = "none yet: in warm-up it takes work of both phases, whatever its role"
APPEND: Final = " append"
"""Behind a decode node's name, among those that could prefill."""
MOST_WRITES: Final = 5
MOST_NAMES: Final = 20
REQUESTS_HEAD: Final = ("REQUEST", "STAGE", "SINCE", "NEW", "LEFT", "WAIT", "PREFILL", "TTFT")
UNDER_WAY: Final = ("waiting", "prefill", "handover", "decode")


def request_text(found: RequestWhy, width: int | None) -> str:
    named = f", branch {found.branch}" if found.branch else ""
    state = found.state if not found.reason else f"{found.state} ({found.reason})"
    if found.state in UNDER_WAY:
        state = f"under way: {found.state}"
    parts = [
        f"request {found.request_id} of tenant {found.tenant}{named}: {state}\n"
        f"arrived {ago(found.arrived_s)} with {number_of(found.prompt_tokens, 'token')}; "
        f"from {found.source}"
    ]
    parts += [_decision_text(one, width) for one in found.decisions]
    if not found.decisions:
        parts.append("it was sent to no node")
    parts.append(_outcome_table(found))
    return "\n\n".join(parts)


def _decision_text(one: RoutingDecision, width: int | None) -> str:
    why = one.why or "sent (the terms of so long ago are no longer kept)"
    head = f"+{seconds(one.after_s)} {why}: prefill on {one.prefill_node}, "
    if one.appended:
        head = f"+{seconds(one.after_s)} {why}: appended behind its prefix on {one.prefill_node}, "
    parts = [head + f"decode on {one.decode_node}"]
    prefill_on = one.prefill_node + (APPEND if one.appended else "")
    for name, terms, node in (
        ("PREFILL", _with_append(one), prefill_on),
        ("DECODE", one.decode, one.decode_node),
    ):
        if terms:
            parts.append(_terms_table(name, terms, node, width))
    return "\n".join(parts)


def _with_append(one: RoutingDecision) -> dict[str, Mapping[str, float]]:
    """Nodes that would append beside those that would prefill, for their totals compare. Only the
    former disturb what they decode: without one, that column says nothing."""
    if one.append:
        append = {f"{node}{APPEND}": row for node, row in one.append.items()}
        return {**one.prefill, **append}
    return {
        node: {key: value for key, value in row.items() if key != "interfering_s"}
        for node, row in one.prefill.items()
    }


def _terms_table(
    name: str, terms: Mapping[str, Mapping[str, float]], chosen: str, width: int | None
) -> str:
    found = dict.fromkeys(key for row in terms.values() for key in row)
    keys = [k for k in found if k not in SELDOM or any(row.get(k) for row in terms.values())]
    keys.sort(key=lambda key: list(PREFILL_TERMS).index(key) if key in PREFILL_TERMS else 99)
    head = (name, *(PREFILL_TERMS.get(key, _shown(key)) for key in keys))
    rows = [
        (f"{node} *" if node == chosen else node, *(_figure(key, row.get(key)) for key in keys))
        for node, row in terms.items()
    ]
    del width  # columns of figures: cutting them would hide what was asked for
    return table(head, rows, right=range(1, len(head)))


def _shown(key: str) -> str:
    return key.removesuffix("_s").replace("_", " ").upper()


def _figure(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    if key == "has_room":
        return "yes" if value else "no"
    return f"{value:.3f} s" if key.endswith("_s") else f"{value:g}"


def _outcome_table(found: RequestWhy) -> str:
    last = found.decisions[-1] if found.decisions else None
    told = last.predicted if last is not None else None
    then, after_s = found.outcome, last.after_s if last is not None else 0.0
    rows = [
        ("wait for prefill", told.wait_s if told else None, then.wait_s),
        ("prefill", told.service_s if told else None, then.prefill_s),
        ("fetch", told.fetch_s if told else None, then.fetch_s),
        ("first token", after_s + told.ttft_s if told else None, then.ttft_s),
        ("hand-over", None, then.handover_s),
        ("end", None, then.e2e_s),
    ]
    shown = [(what, _exact(expected), _exact(actual)) for what, expected, actual in rows]
    text = table(("", "PREDICTED", "ACTUAL"), shown, right=(1, 2))
    if then.uncached_tokens is not None:
        text += f"\n{then.uncached_tokens} tokens computed, {then.cached_tokens} were there"
    if then.output_tokens is not None:
        text += f"; {then.output_tokens} came out"
    return text


def _exact(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"


# ---------------------------------------------------------------- node


def node_text(found: NodeWhy, width: int | None) -> str:
    role = found.role
    if found.settled_role != found.role:
        role = f"{found.settled_role} -> {found.role}, finishing work of its old role"
    when = f", {ago(found.last.time_s)}" if found.last is not None else ""
    lines = [
        f"node {found.node}: {role}, {found.state}",
        f"role     {found.how}{when}",
        f"model    {WARMING if found.warming else MODELS.get(found.model, found.model)}",
        f"prefill  {seconds(found.running_s)} running, {seconds(found.queued_s)} queued",
        f"decode   {number_of(found.decodes, 'request')} there or to come",
    ]
    move = found.move
    if move is not None:
        flip = (
            "not flipped yet"
            if move.to_flip_s is None
            else f"flipped after {move.to_flip_s:.3f} s"
        )
        lines.append(f"change   {flip}; {move.finished} finished, {move.requeued} requeued")
    if not found.requests:
        return "\n".join([*lines, "", "no request is there"])
    rows = [_request_row(one) for one in found.requests]
    shown = table(REQUESTS_HEAD, rows, right=range(2, 8))
    told = "WAIT, PREFILL and TTFT: as predicted when it was sent there"
    if width is not None and max(map(len, shown.splitlines())) > width:  # TTFT says as much
        head, rows = REQUESTS_HEAD[:6] + REQUESTS_HEAD[7:], [row[:6] + row[7:] for row in rows]
        shown = table(head, rows, right=range(2, 7))
        told = told.replace(", PREFILL", "")
    rest = found.requests_total - len(found.requests)
    return "\n".join([*lines, "", shown, *([f"and {rest} more"] if rest else []), told])


def _request_row(one: NodeRequest) -> tuple[str, ...]:
    told = one.predicted
    return (
        one.request_id,
        one.stage,
        seconds(one.since_s),
        str(one.uncached_tokens),
        str(one.remaining_tokens),
        _exact(told.wait_s if told else None),
        _exact(told.service_s if told else None),
        _exact(told.ttft_s if told else None),
    )


# ---------------------------------------------------------------- split


def split_text(found: SplitWhy, width: int | None) -> str:
    moving = found.split != found.target_split
    split = f"{found.split} -> {found.target_split}" if moving else found.split
    held = f" by {found.held_by}" if found.held_by else ""
    why = f": {found.hold_reason}" if found.hold_reason else ""
    until = f" for another {left(found.held_until_s)}" if found.held_until_s else ""
    parts = [f"{split}, {found.mode}{held}{until}{why}"]
    outcomes = {one.number: one for one in found.outcomes}
    for decision in found.decisions:
        text = decision_text(decision, width)
        if (outcome := outcomes.get(decision.number)) is not None:
            text += "\n" + folded(_came_of_it(outcome), width)
        parts.append(text)
    if not found.decisions:
        parts.append("the planner has decided nothing yet; evctl plan says what it would do")
    if found.writes:
        writes = "\n".join(_write_line(one) for one in found.writes[-MOST_WRITES:])
        parts.append(folded(writes, width))
    return "\n\n".join(parts)


def _came_of_it(outcome: PlanOutcome) -> str:
    expected = f"expected of {outcome.split}: {forecast_text(outcome.forecast)}"
    if outcome.measured is None:
        return f"{expected}; what comes of it is not measured yet"
    then = forecast_text(outcome.measured)
    return f"{expected}; then: {then} ({number_of(outcome.requests, 'request')})"


def _write_line(record: EventRecord) -> str:
    return f"{ago(record.time_s)}  {record.what}"


# ---------------------------------------------------------------- block


def block_text(found: BlockWhy, width: int | None) -> str:
    block = found.block
    parts = [f"block {block.key}, number {block.position} of its path"]
    if found.copies:
        rows = [
            (one.node, "+".join(f"L{tier}" for tier in one.tiers), one.evicted)
            for one in found.copies
        ]
        parts.append(table(("NODE", "IN", "EVICTED"), rows, width=width))
    else:
        parts.append("no node holds it")
    names = [f"{name.tenant} {name.branch}" for name in block.branches[:MOST_NAMES]]
    if block.branches_total > len(names):
        names.append(f"and {block.branches_total - len(names)} more")
    parts.append("\n".join(["TENANT AND BRANCH", *names]) if names else "no branch needs it")
    if block.promised_by:
        parts.append("\n".join(["PROMISED BY REQUEST", *block.promised_by]))
    return "\n\n".join(parts)
