"""Decisions of the planner for people: verdict, candidates, forecasts."""

from __future__ import annotations

from collections.abc import Iterable

from evctl.cli.moments import ago
from evctl.cli.output import folded, seconds, table
from evctl.core.planning import Candidate, Forecast, PlanDecision

HEAD = ("SPLIT", "REQ/S", "TTFT", "E2E", "P95 WAIT", "GAIN", "SE", "VERDICT", "WHY")


def candidates_table(candidates: Iterable[Candidate], width: int | None) -> str:
    return table(HEAD, [_row(one) for one in candidates], right=range(1, 7), width=width)


def _row(one: Candidate) -> tuple[str, ...]:
    """`-` for what was not weighed, and for an error that too few slices leave open."""
    weighed, bounded = one.verdict not in ("current", "bounded"), one.verdict == "bounded"
    return (
        one.split,
        "-" if bounded else f"{one.forecast.throughput_rps:.2f}",
        seconds(one.forecast.ttft_s),
        seconds(one.forecast.e2e_s),
        seconds(one.forecast.prefill_wait_p95_s),
        _share(one.gain, one.measure) if weighed else "-",
        f"{100 * one.error:.1f}%" if weighed and one.error else "-",
        one.verdict,
        one.why or "-",
    )


def decision_text(decision: PlanDecision, width: int | None, *, now: bool = False) -> str:
    """now: it is what the planner would decide, not what it did."""
    what = f"{decision.verdict}: {decision.why}" if decision.why else decision.verdict
    if now:
        head = f"now, at {decision.current} in mode {decision.mode}: {what}"
    else:
        when = ago(decision.time_s)
        head = f"decision {decision.number}, {when}, at {decision.current} in mode {decision.mode}"
        head += f": {what}"
    parts = [folded(head, width)]
    if decision.candidates:
        parts.append(candidates_table(decision.candidates, width))
    if decision.slices:
        parts.append(folded(_seen(decision), width))
    return "\n\n".join(parts)


def forecast_text(one: Forecast) -> str:
    """`1.20 req/s, TTFT 0.80 s, E2E 3.10 s`."""
    known = [f"{one.throughput_rps:.2f} req/s"]
    if one.ttft_s is not None:
        known.append(f"TTFT {seconds(one.ttft_s)}")
    if one.e2e_s is not None:
        known.append(f"E2E {seconds(one.e2e_s)}")
    return ", ".join(known)


def forecasts(decision: PlanDecision, split: str) -> tuple[Forecast, Forecast] | None:
    """Of the split in force and of another one; None unless both are known."""
    found = {one.split: one.forecast for one in decision.candidates}
    now, then = found.get(decision.current), found.get(split)
    return (now, then) if now is not None and then is not None else None


def _seen(decision: PlanDecision) -> str:
    slices = decision.slices
    thin = sum(one.thin for one in slices)
    arrivals = sum(one.arrivals for one in slices)
    told = f"from {len(slices)} slices with {arrivals} requests"
    if thin:
        told += f", {thin} of them thin"
    if decision.compared_slices > len(slices):
        told += f", compared over the last {decision.compared_slices}"
    models = sorted(set(decision.model.values()))
    return f"{told}; execution-time models: {', '.join(models) or 'none'}"


def _share(gain: float, measure: str) -> str:
    shown = f"{100 * gain:+.1f}%"
    return shown if measure == "throughput" else f"{shown} {measure}"
