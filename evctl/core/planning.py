"""What the planner saw, weighed and decided: one record a decision (design, section 5)."""

from __future__ import annotations

import msgspec

from evctl.core.moves import Move


class SliceRecord(msgspec.Struct, frozen=True):
    """Mean workload of one slice of the window, per request, and what was in flight.

    uncached_tokens, cached_tokens, attention_pairs, restored_tokens: of the `arrivals` requests
    whose prefill began in it; output_tokens, accepted_per_iteration: of the `completions` that
    ended in it. tokens_per_iteration: new tokens of a prefill iteration (m). in_flight: requests
    in both phases, queued or running, on average over the slice; decode_queue: those that waited
    for decode; prefill_queue: for prefill. branches: live ones; pause_s: their mean pause between
    requests; squared_variation: squared coefficient of variation of the prefill service, whose
    predicted mean is service_s; wait_s: mean time from dispatch to the begin of prefill, of those
    that began; prefill_running: requests being prefilled, on average. thin: fewer than 20
    requests.
    """

    start_s: float
    end_s: float
    arrivals: int
    completions: int
    uncached_tokens: float
    cached_tokens: float
    attention_pairs: float
    restored_tokens: float
    output_tokens: float
    accepted_per_iteration: float
    tokens_per_iteration: float
    in_flight: float
    decode_queue: float
    prefill_queue: float
    branches: float = 0.0
    pause_s: float = 0.0
    squared_variation: float = 1.0
    service_s: float = 0.0
    wait_s: float = 0.0
    prefill_running: float = 0.0
    thin: bool = False


class Forecast(msgspec.Struct, frozen=True):
    """What is expected of a split: requests a second and seconds."""

    throughput_rps: float
    ttft_s: float | None = None
    e2e_s: float | None = None
    prefill_wait_p95_s: float | None = None


class Candidate(msgspec.Struct, frozen=True):
    """One split beside the present one. gain: mean over the slices of its throughput over the
    present one's, minus 1; error: the standard error of that. verdict: "current", "chosen",
    "passed" (sure, but another is better), "unsure" (gain within the test's bound), "worse",
    "small" (not worth a move), "guarded" (a wait beyond the target, or taken back lately),
    "bounded" (outside what is allowed). why: in words.

    measure: what gain is of: "throughput", or "e2e" where throughputs are as good as equal: the
    present mean E2E over the candidate's, minus 1. theta_rps: requests a second that its slower
    phase allows (Theta of section 4.3), whatever the forecast is made by."""

    split: str
    forecast: Forecast
    gain: float
    error: float
    verdict: str
    why: str
    measure: str = "throughput"
    theta_rps: float = 0.0


class PlanDecision(msgspec.Struct, frozen=True):
    """number: rises by one with each in a life of the control plane. verdict: "move", "stay",
    "advise" (it would move, and may not: advise or hold), "blind" (no decision: a signal is
    missing or thin), "idle" (no work), "cooldown", "settling", "revert" (probation),
    "failed" (a bug: why names the error).

    mode: auto, hold or advise when it was made. current: the split that routing aimed at.
    chosen: the best candidate that passed the test, "" for none. model: node -> where its
    coefficients come from ("fitted", "kept" from an earlier life, "borrowed" of a node like it,
    "prior"). why: in words. slices: of the window. compared_slices: how many the candidates were
    compared over, without thin ones, and with those of windows before where the window alone
    leaves it open; 0 without candidates.
    """

    number: int
    time_s: float
    mode: str
    current: str
    verdict: str
    chosen: str
    candidates: tuple[Candidate, ...]
    slices: tuple[SliceRecord, ...]
    model: dict[str, str]
    moves: tuple[Move, ...]
    why: str
    compared_slices: int = 0

    def foremost(self, number: int) -> tuple[Candidate, ...]:
        """So many candidates, in their order: the present split, the chosen one, then those that
        promise most of what may be chosen."""

        def rank(candidate: Candidate) -> tuple[bool, bool, bool, float]:
            return (
                candidate.verdict != "current",
                candidate.split != self.chosen,
                candidate.verdict == "bounded",
                -candidate.gain,
            )

        kept = {each.split for each in sorted(self.candidates, key=rank)[: max(0, number)]}
        return tuple(each for each in self.candidates if each.split in kept)
