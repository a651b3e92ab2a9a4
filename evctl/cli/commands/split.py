"""evctl split get | set | hold | advise | auto | history"""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from evctl.cli.asking import Tier, confirm
from evctl.cli.failures import check_exit_code, not_yet
from evctl.cli.groups import group
from evctl.cli.moments import ago, iso
from evctl.cli.output import (
    DocumentOption,
    Form,
    NamesOption,
    chosen,
    number_of,
    print_document,
    table,
    terminal_width,
)
from evctl.cli.target import (
    ClusterOption,
    ConfirmOption,
    Target,
    YesOption,
    complete_split,
    find_target,
    who,
)
from evctl.core.errors import ConflictError, ExitCode, RefusedError, UnreachableError
from evctl.core.split import Split, parse_split
from evctl.core.status import ClusterStatus, EventRecord, SplitChange, SplitWrite

if TYPE_CHECKING:
    from evctl.client.admin import AdminClient

app = group("Show or change how many nodes prefill and decode.")

RELATIVE: Final = re.compile(r"([+-])(\d{1,6})([pPdD])", re.ASCII)
HISTORY_PAGE: Final = 1000
"""Events a call, as many as the control plane gives."""
MOST_MOVES: Final = 4
LOOK: Final = "evctl split get"
"""What the control plane advises; it does not know how its cluster is named here."""
ReasonOption = Annotated[str, typer.Option("--reason", help="Noted with the change.")]


def _status(target: Target) -> ClusterStatus:
    try:
        with target.client() as client:
            return client.status()
    except UnreachableError as error:
        raise target.explained(error) from error


@app.command()
def get(cluster: ClusterOption = None, output: NamesOption = None) -> None:
    """Show the split, and who holds it."""
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML, Form.NAME)
    now = _status(find_target(cluster))
    if form is Form.NAME:
        print(now.target_split)
    elif form is Form.TABLE:
        moving = now.split != now.target_split
        held = f" by {now.held_by}" if now.held_by else ""
        split = f"{now.split} -> {now.target_split}" if moving else now.split
        print(f"{split}, {now.mode}{held}, generation {now.generation}")
    else:
        names = ("split", "target_split", "mode", "generation", "held_by", "hold_reason")
        values = {"cluster": now.cluster, **{name: getattr(now, name) for name in names}}
        print_document(form, "SplitStatus", values)


@app.command("set", context_settings={"ignore_unknown_options": True})
def set_split(
    split: Annotated[
        str,
        typer.Argument(
            metavar="SPLIT", help="Such as 4P5D, or +1P, -1D.", autocompletion=complete_split
        ),
    ],
    cluster: ClusterOption = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show what would move; do nothing.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Also within the cooldown.")] = False,
    reason: ReasonOption = "",
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="With --plan: exit 10 when a node would move.")
    ] = False,
    yes: YesOption = False,
    confirmed: ConfirmOption = None,
    output: DocumentOption = None,
) -> ExitCode:
    """Change the split and hold it there. Running requests finish where they are."""
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML)
    check_exit_code(exit_code, plan)
    target = find_target(cluster)
    try:
        with target.client() as client:
            now = client.status()
            wanted = str(resolved(split, now))
            by = who()
            planned = client.set_split(wanted, by=by, plan=True, generation=now.generation)
            if plan:
                _print_change(form, planned, now, target, force=force)
                return ExitCode.CHANGES_PENDING if exit_code and planned.moves else ExitCode.DONE
            if planned.refused_until_s is not None and not force:
                raise _too_soon(planned)
            asked = _ask(target, planned, now, yes, confirmed)
            change = client.set_split(
                wanted, by=by, reason=reason, generation=now.generation, force=force
            )
    except UnreachableError as error:
        raise target.explained(error) from error
    except ConflictError as error:
        error.next_step = error.next_step.replace(LOOK, f"{LOOK}{target.flag}")
        raise
    _print_change(form, change, now, target, shown=asked)
    return ExitCode.DONE


def resolved(text: str, now: ClusterStatus) -> Split:
    """A split, absolute or relative to the one that is aimed at.

    Raises UsageError, or RefusedError (EV-1101) for one that would leave a phase empty.
    """
    match = RELATIVE.fullmatch(text.strip())
    if match is None:
        return parse_split(text)
    at = parse_split(now.target_split)
    step = int(match[2]) * (1 if match[1] == "+" else -1) * (1 if match[3] in "pP" else -1)
    prefill, decode = at.prefill_nodes + step, at.decode_nodes - step
    if prefill < 1 or decode < 1:
        raise RefusedError(
            what=f"{text} from {at} would leave {prefill} to prefill and {decode} to decode",
            why="each phase needs at least one node",
            next_step="give a smaller step",
            code="EV-1101",
        )
    return Split(prefill, decode)


def _ask(
    target: Target, change: SplitChange, now: ClusterStatus, yes: bool, confirmed: str | None
) -> bool:
    """Whether the difference was shown to a person, who then agreed."""
    what = f"change the split of {now.cluster} from {change.before} to {change.after} and hold it"
    if not change.moves:
        what = f"hold the split of {now.cluster} at {change.after}"
    asks = bool(change.moves) and not yes and confirmed is None
    if asks:
        sys.stderr.write(_diff(change) + "\n")
    confirm(
        what,
        Tier.DISRUPTIVE if change.moves else Tier.NONE,
        cluster=now.cluster,
        protected=target.protected and not change.unchanged,
        yes=yes,
        confirmed=confirmed,
    )
    return asks


def _too_soon(planned: SplitChange) -> RefusedError:
    """As the control plane would refuse it, before anybody is asked for a yes."""
    return RefusedError(
        what=f"the split was not changed to {planned.after}",
        why=f"refused until {_until(planned)}",
        next_step="wait, or repeat with --force",
        code="EV-1352",
    )


def _until(planned: SplitChange) -> str:
    assert planned.refused_until_s is not None
    when = time.strftime("%H:%M:%S", time.localtime(planned.refused_until_s))
    return f"{when} (cooldown: {planned.cooldown_s:.0f} s after the last move)"


def _diff(change: SplitChange) -> str:
    if not change.moves:
        return f"{change.after}: no node moves"
    lines = [f"{change.before} -> {change.after}"]
    lines += [
        f"  {move.node}: {move.before} -> {move.after}; "
        f"{move.running} running {'finishes' if move.running == 1 else 'finish'} there, "
        f"{move.queued} queued {'moves' if move.queued == 1 else 'move'}"
        for move in change.moves
    ]
    return "\n".join(lines)


def _print_change(
    form: Form,
    change: SplitChange,
    now: ClusterStatus,
    target: Target,
    shown: bool = False,
    force: bool = False,
) -> None:
    if form is not Form.TABLE:
        values: dict[str, Any] = msgspec.to_builtins(change)
        print_document(form, "SplitChange", {"cluster": now.cluster, **values})
        return
    if change.unchanged:
        held = f"held by {now.held_by}" if now.held_by else "held"
        print(f"{change.after} is {held} already: nothing to change")
        return
    if not shown:
        print(_diff(change))
    if change.applied:
        release = f"evctl split advise{target.flag}"
        print(f"held at {change.after} until `{release}`; generation {change.generation}")
    else:
        if change.refused_until_s is not None:
            passes = "--force passes that" if force else "unless --force"
            print(f"refused until {_until(change)}, {passes}")
        moves = number_of(len(change.moves), "node")
        seen = f"generation {change.generation}"
        print(f"plan only: {moves} would move, nothing was changed; {seen}")


@app.command()
def hold(
    cluster: ClusterOption = None,
    reason: ReasonOption = "",
    yes: YesOption = False,
    confirmed: ConfirmOption = None,
    output: DocumentOption = None,
) -> None:
    """Keep the present split."""
    _set_mode(cluster, "hold", reason, yes, confirmed, output)


@app.command()
def advise(
    cluster: ClusterOption = None,
    reason: ReasonOption = "",
    yes: YesOption = False,
    confirmed: ConfirmOption = None,
    output: DocumentOption = None,
) -> None:
    """Release the split; the planner only advises."""
    _set_mode(cluster, "advise", reason, yes, confirmed, output)


def _set_mode(
    cluster: str | None,
    mode: str,
    reason: str,
    yes: bool,
    confirmed: str | None,
    output: Form | None,
) -> None:
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML)
    target = find_target(cluster)
    confirm(
        f"set the mode of {target.name} to {mode}",
        Tier.NONE,
        cluster=target.name,
        protected=target.protected,
        yes=yes,
        confirmed=confirmed,
    )
    try:
        with target.client() as client:
            now = client.set_mode(mode, by=who(), reason=reason)
    except UnreachableError as error:
        raise target.explained(error) from error
    if form is Form.TABLE:
        print(f"{now.target_split}, {now.mode}, generation {now.generation}")
    else:
        names = ("cluster", "split", "target_split", "mode", "generation", "held_by")
        print_document(form, "SplitStatus", {name: getattr(now, name) for name in names})


@app.command()
def auto(cluster: ClusterOption = None, output: DocumentOption = None) -> None:
    """Let the planner move nodes (not yet in this version)."""
    chosen(output, Form.TABLE, Form.JSON, Form.YAML)
    del cluster
    raise not_yet("the automatic split", "evctl split set SPLIT, or evctl split advise to release")


@app.command()
def history(cluster: ClusterOption = None, output: DocumentOption = None) -> None:
    """List who changed split and mode, when and why, newest last."""
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML)
    target = find_target(cluster)
    try:
        with target.client() as client:
            events = _all_events(client)
    except UnreachableError as error:
        raise target.explained(error) from error
    found = [(event, event.write) for event in events if event.write is not None]
    if form is Form.TABLE:
        rows = [_history_row(event, write) for event, write in found]
        head = ("WHEN", "GEN", "SPLIT", "MODE", "NODES", "BY", "WHY")
        shown = table(head, rows, right=(1,), width=terminal_width())
        print(shown if rows else "no change so far")
        return
    items = [{"time": iso(event.time_s), **msgspec.to_builtins(write)} for event, write in found]
    print_document(form, "SplitHistory", {"cluster": target.name, "changes": items})


def _all_events(client: AdminClient) -> list[EventRecord]:
    events: list[EventRecord] = []
    while page := client.events(since=events[-1].sequence if events else 0, limit=HISTORY_PAGE):
        events += page
    return events


def _history_row(event: EventRecord, write: SplitWrite) -> tuple[str, ...]:
    moves = ", ".join(f"{m.node} {m.before}>{m.after}" for m in write.moves[:MOST_MOVES])
    if len(write.moves) > MOST_MOVES:
        moves += f" +{len(write.moves) - MOST_MOVES}"
    return (
        ago(event.time_s),
        str(write.generation),
        f"{write.before} -> {write.after}" if write.moves else write.after,
        write.mode,
        moves or "-",
        write.by,
        " ".join(filter(None, (write.reason, "(--force)" if write.forced else ""))) or "-",
    )
