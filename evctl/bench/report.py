"""BenchReport: the result of simulated and live runs, in the form that scripts rely on.

What a run did not measure is null; what only some runs measure is in `extras`.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from evctl.core.errors import ConfigError, NotFoundError

API_VERSION = "evctl/v1"
KIND = "BenchReport"

Extra = bool | int | float | str | None


class Timing(msgspec.Struct, frozen=True):
    """A distribution of times in seconds."""

    mean: float | None = None
    p50: float | None = None
    p95: float | None = None


class BenchRun(msgspec.Struct, frozen=True, kw_only=True):
    """One policy under one seed.

    kv_hit_rate: cached over all prompt tokens; kv_hit_rate_ideal: those whose KV an earlier
    request made; kv_lost_reuse: 1 - hit / ideal, kv_lost_by_cause: the same by eviction, routing,
    role change, fault. switch_time_s: cordon to settled, a node move. pause_s: mean time between
    an answer and the branch's next request. prefill_idle, off_optimum, peak_kv_demand: shares.
    In extras, of a replay: ok; interrupted, true where a person ended it; warm_requests, how many
    found more KV than the run itself had made, so that kv_hit_rate is not this run's own.
    """

    policy: str
    seed: int
    throughput_rps: float | None = None
    ttft_s: Timing = Timing()
    e2e_s: Timing = Timing()
    tpot_s: Timing = Timing()
    kv_hit_rate: float | None = None
    kv_hit_rate_ideal: float | None = None
    kv_lost_reuse: float | None = None
    kv_lost_by_cause: dict[str, float] | None = None
    uncached_tokens_per_request: float | None = None
    switches: int | None = None
    switch_time_s: float | None = None
    final_split: str | None = None
    split_timeline: list[tuple[float, str]] | None = None
    queue_wait_s: Timing | None = None
    most_loaded_over_average: float | None = None
    pause_s: float | None = None
    prefill_idle: float | None = None
    peak_kv_demand: float | None = None
    off_optimum: float | None = None
    requests: int = 0
    failed: int = 0
    extras: dict[str, Extra] = {}


class BenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one scenario."""

    api_version: str = msgspec.field(name="apiVersion", default=API_VERSION)
    kind: str = KIND
    scenario: str
    runs: list[BenchRun]

    @property
    def failed(self) -> int:
        """Failed requests of all runs."""
        return sum(run.failed for run in self.runs)

    @property
    def ok(self) -> bool:
        """No request failed, and no run says of itself that it is not ok."""
        return not self.failed and all(run.extras.get("ok", True) for run in self.runs)

    def rows(self) -> list[tuple[str, ...]]:
        """A table: names in the first column, a column of values for each run."""
        columns = [_column(run) for run in self.runs]
        names = list(dict.fromkeys(name for column in columns for name in column))
        return [(name, *(column.get(name, "-") for column in columns)) for name in names]


def _column(run: BenchRun) -> dict[str, str]:
    extras = dict(run.extras)
    column = {
        "result": _result(run, extras.pop("ok", None)),
        "warning": _warning(extras.pop("warm_requests", None)),
        "policy (a label)": run.policy,
        "seed": str(run.seed),
        "requests": f"{run.requests:,}",
        "failed": f"{run.failed:,}",
        "throughput (requests/s)": _number(run.throughput_rps),
        "TTFT": _timing(run.ttft_s),
        "E2E": _timing(run.e2e_s),
        "TPOT": _timing(run.tpot_s),
        "KV hit": _hit(run),
        "KV hit, ideal": _percent(run.kv_hit_rate_ideal),
        "KV reuse lost": _percent(run.kv_lost_reuse),
        "uncached tokens a request": _number(run.uncached_tokens_per_request),
        "queue wait": _timing(run.queue_wait_s or Timing()),
        "switches": "-" if run.switches is None else str(run.switches),
        "switch time": _seconds(run.switch_time_s),
        "final split": run.final_split or "-",
        "most loaded / average": _number(run.most_loaded_over_average),
        "agent's pause, mean": _seconds(run.pause_s),
        "prefill idle": _percent(run.prefill_idle),
        "peak KV demand": _percent(run.peak_kv_demand),
        "off the optimum": _percent(run.off_optimum),
    }
    column = {name: value for name, value in column.items() if value != "-"}
    extras.pop("interrupted", None)  # the result says it
    for name, value in extras.items():
        if name.endswith("_s") and isinstance(value, int | float):
            column[name.removesuffix("_s").replace("_", " ")] = _seconds(value)
        else:
            column[name.replace("_", " ")] = _extra(value)
    return column


def _result(run: BenchRun, ok: Extra) -> str:
    """Whether the run may be believed, and if not, why."""
    if ok is None:
        return "-"
    if ok:
        return "ok"
    extras = run.extras
    why = [
        "interrupted, this is what was done until then" if extras.get("interrupted") else "",
        f"{run.failed:,} of {run.requests:,} requests failed" if run.failed else "",
        "ended early" if extras.get("aborted") else "",
        _counted(extras, "changed_outputs", "answers were not the forced ones"),
        _counted(extras, "wrong_tokens", "tokens are wrong"),
        _counted(extras, "wrong_logprobs", "log-probabilities are wrong"),
        _counted(extras, "unverified", "answers could not be checked"),
        "" if run.requests else "no request was answered",
    ]
    return "NOT OK: " + ("; ".join(filter(None, why)) or "see below")


def _counted(extras: dict[str, Extra], name: str, what: str) -> str:
    count = extras.get(name)
    return f"{count:,} {what}" if isinstance(count, int) and count else ""


def _warning(warm: Extra) -> str:
    if not warm:
        return "-"
    return (
        f"the cluster was warm: {warm} requests found more than this run made, so its KV hit is "
        "not this run's; another --seed asks for KV that no run has made"
    )


def _hit(run: BenchRun) -> str:
    hit, ideal = run.kv_hit_rate, run.kv_hit_rate_ideal
    above = hit is not None and ideal is not None and hit > ideal
    return _percent(hit) + (" (above the ideal: not a result)" if above else "")


def _extra(value: Extra) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number(value)
    return value or "-"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if isinstance(value, int) or value >= 1000 else f"{value:.4g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


def _seconds(value_s: float | None) -> str:
    if value_s is None:
        return "-"
    return f"{1000 * value_s:.1f} ms" if value_s < 1 else f"{value_s:.2f} s"


def _timing(timing: Timing) -> str:
    if timing.mean is None:
        return "-"
    parts = (("mean", timing.mean), ("p50", timing.p50), ("p95", timing.p95))
    return " · ".join(f"{name} {_seconds(value)}" for name, value in parts)


def write_report(path: Path, report: BenchReport) -> None:
    """Write as indented JSON; the file appears whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_report(path: Path) -> BenchReport:
    """Raises NotFoundError or ConfigError."""
    try:
        report = msgspec.json.decode(path.read_bytes(), type=BenchReport)
    except OSError as error:
        raise NotFoundError(
            what=f"cannot open the report {path}",
            why=error.strerror or str(error),
            next_step="give the path of a BenchReport",
            code="EV-1620",
        ) from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _no_report(path, str(error)) from error
    if report.kind != KIND or report.api_version != API_VERSION:
        raise _no_report(path, f"it is a {report.kind} of {report.api_version}")
    return report


def _no_report(path: Path, why: str) -> ConfigError:
    return ConfigError(
        what=f"{path} is no BenchReport",
        why=why,
        next_step="make one with `evctl trace replay` or `evctl bench run`",
        code="EV-1621",
    )
