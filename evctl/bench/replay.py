"""`evctl trace replay`: a replay of a recorded trace, told as a BenchReport."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

from evctl.bench.report import BenchReport, BenchRun, Extra, Timing, write_report
from evctl.trace import commands
from evctl.trace.content import DEFAULT_VOCAB
from evctl.trace.measure import Progress, ReplayResult
from evctl.trace.stats import Spread
from evctl.trace.target import Target
from evctl.trace.verify import Verifier


def replay(
    trace: str | Path,
    target: str | Target,
    *,
    agents: int,
    scale: str | float | Fraction = "1/16",
    policy: str = "live",
    max_requests: int | None = None,
    record: Path | None = None,
    verify: int = 0,
    verify_target: str | Verifier | None = None,
    exact: bool = True,
    seed: int = 0,
    gap_cap_s: float | None = 30.0,
    time_scale: float = 1.0,
    start: tuple[float, float] = (0.25, 0.75),
    api_key: str = "",
    model: str = "",
    vocab: tuple[int, int] = DEFAULT_VOCAB,
    share_prefix: bool = True,
    report_path: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> BenchReport:
    """See evctl.trace.commands.replay. policy: what the target runs, a label in the report."""
    result = commands.replay(
        trace,
        target,
        agents=agents,
        scale=scale,
        max_requests=max_requests,
        record=record,
        verify=verify,
        verify_target=verify_target,
        exact=exact,
        seed=seed,
        gap_cap_s=gap_cap_s,
        time_scale=time_scale,
        start=start,
        api_key=api_key,
        model=model,
        vocab=vocab,
        share_prefix=share_prefix,
        progress=progress,
    )
    report = to_report(result, scenario=f"replay-{Path(trace).name}", policy=policy)
    if report_path is not None:
        write_report(report_path, report)
    return report


def to_report(result: ReplayResult, *, scenario: str, policy: str) -> BenchReport:
    """What only a simulator or the control plane can know stays null."""
    lost = None
    # What was there before is counted as found and not as possible: no share of it means anything.
    if result.hit_rate is not None and result.ideal_hit_rate and not result.warm_requests:
        lost = 1 - result.hit_rate / result.ideal_hit_rate
    run = BenchRun(
        policy=policy,
        seed=result.seed,
        throughput_rps=result.throughput_rps,
        ttft_s=_timing(result.ttft_s),
        e2e_s=_timing(result.e2e_s),
        tpot_s=_timing(result.tpot_s),
        kv_hit_rate=result.hit_rate,
        kv_hit_rate_ideal=result.ideal_hit_rate,
        kv_lost_reuse=lost,
        uncached_tokens_per_request=result.uncached_tokens_per_request,
        pause_s=result.pause_s,
        requests=result.requests,
        failed=result.failed,
        extras=_extras(result),
    )
    return BenchReport(scenario=scenario, runs=[run])


def _extras(result: ReplayResult) -> dict[str, Extra]:
    extras: dict[str, Extra] = {"ok": result.ok}
    if result.interrupted:
        extras["interrupted"] = True
    if result.warm_requests:
        extras["warm_requests"] = result.warm_requests
    extras |= {
        "duration_s": result.duration_s,
        "agents": result.agents,
        "scale": result.scale,
        "conversations": result.conversations,
        "branches": result.branches,
        "branches_at_once_max": result.branches_max,
        "branches_at_once_mean": result.branches_mean,
        "in_flight_max": result.in_flight_max,
        "in_flight_mean": result.in_flight_mean,
        "mean_prompt_tokens": result.mean_prompt_tokens,
        "prompt_tokens": result.prompt_tokens,
        "output_tokens": result.output_tokens,
        "retries": result.retries,
        "changed_outputs": result.changed_outputs,
        "unknown_cached": result.unknown_cached,
    }
    verdict = result.verdict
    if verdict is not None:
        extras |= {
            "verified": verdict.checked,
            "unverified": verdict.unchecked,
            "wrong_tokens": verdict.wrong_tokens,
            "wrong_logprobs": verdict.wrong_logprobs,
            "compared_tokens": verdict.compared_tokens,
            "wrong_requests": " ".join(m.request_id for m in verdict.mismatches[:20]),
        }
    if result.errors:
        extras["errors"] = "; ".join(f"{n} x {why}" for why, n in result.errors.items())[:2000]
    if result.aborted:
        extras["aborted"] = result.aborted
    return extras


def _timing(spread: Spread) -> Timing:
    return Timing(spread.mean, spread.p50, spread.p95)
