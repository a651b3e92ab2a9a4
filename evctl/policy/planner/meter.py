"""What the planner measures: mean workloads and what was in flight, slice by slice.

Every event costs a constant: sums are added to, and areas under the counts of requests by stage
grow when one of them changes. A request counts in the slice that the fact reached us in; facts
come at most once each (the reducer drops what is late or repeated before it gets here).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from evctl.core.planning import SliceRecord
from evctl.core.workload import attention_pairs

MOST_PAUSING = 65_536
"""Branches whose pause is timed; the longest silent go first."""

BranchKey = tuple[str, str]
"""Tenant and id."""

WAITING, PREFILL, HANDOVER, DECODE = range(4)
STAGES = {"waiting": WAITING, "prefill": PREFILL, "handover": HANDOVER, "decode": DECODE}


class Sums(msgspec.Struct):
    """Of the slice that is open."""

    arrivals: int = 0
    uncached_tokens: int = 0
    cached_tokens: int = 0
    pairs: float = 0.0
    restored_tokens: int = 0
    service_s: float = 0.0
    service_s2: float = 0.0
    wait_s: float = 0.0
    completions: int = 0
    output_tokens: int = 0
    iterations: int = 0
    iteration_tokens: int = 0
    pauses: int = 0
    pause_s: float = 0.0
    areas: list[float] = msgspec.field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0])
    """Request-seconds by stage."""


class Meter:
    """slices: closed ones, the last `keep` of them, oldest first. start_s: of the open one, None
    before the first event."""

    def __init__(self, slice_s: float, least_requests: int, keep: int) -> None:
        self.slices: list[SliceRecord] = []
        self.start_s: float | None = None
        self.stages: dict[str, int] = {}
        """Request -> its stage; exactly those that are on a node."""
        self.counts = [0, 0, 0, 0]
        self._slice_s = slice_s
        self._least = least_requests
        self._keep = keep
        self._sums = Sums()
        self._at_s = 0.0
        self._since_s: dict[str, float] = {}
        self._pausing: OrderedDict[BranchKey, float] = OrderedDict()

    @property
    def end_s(self) -> float | None:
        """When the open slice ends."""
        return None if self.start_s is None else self.start_s + self._slice_s

    def restart(self, now_s: float) -> None:
        """Forget the slices; what is in flight and who pauses stays known."""
        self.slices.clear()
        self._sums = Sums()
        self.start_s = self._at_s = now_s

    def pass_to(self, now_s: float) -> int:
        """Time has come so far; returns how many slices that closed. Called before every event,
        so that each counts in its slice."""
        if self.start_s is None:
            self.restart(now_s)
        closed = 0
        while now_s >= (end_s := self._start() + self._slice_s):
            if closed >= self._keep:  # a silence longer than all that is kept
                self.restart(now_s)
                break
            self._grow(end_s)
            self.slices.append(self._record(end_s))
            del self.slices[: -self._keep]
            self._sums = Sums()
            self.start_s = end_s
            closed += 1
        return closed

    # ------------------------------------------------------------ requests

    def entered(self, request_id: str, now_s: float) -> None:
        """It was sent to a node, and waits there."""
        self._move(request_id, WAITING, now_s)
        self._since_s.setdefault(request_id, now_s)

    def moved(self, request_id: str, stage: int, now_s: float) -> None:
        """A request that is on a node has another stage now."""
        if request_id in self.stages:
            self._move(request_id, stage, now_s)

    def left(self, request_id: str, now_s: float) -> None:
        """It is on no node (any more)."""
        stage = self.stages.pop(request_id, None)
        if stage is not None:
            self._grow(now_s)
            self.counts[stage] -= 1

    def ended(self, request_id: str) -> None:
        """It is over, however."""
        self._since_s.pop(request_id, None)

    def began(
        self,
        request_id: str,
        uncached_tokens: int,
        cached_tokens: int,
        restored_tokens: int,
        service_s: float,
        now_s: float,
    ) -> None:
        """Its prefill began. service_s: what the model of its node says it takes."""
        sums = self._sums
        sums.arrivals += 1
        sums.uncached_tokens += uncached_tokens
        sums.cached_tokens += cached_tokens
        sums.pairs += attention_pairs(uncached_tokens, cached_tokens)
        sums.restored_tokens += restored_tokens
        sums.service_s += service_s
        sums.service_s2 += service_s * service_s
        sums.wait_s += now_s - self._since_s.get(request_id, now_s)

    def completed(self, output_tokens: int) -> None:
        """A request ended well."""
        self._sums.completions += 1
        self._sums.output_tokens += output_tokens

    def iterated(self, prefill_tokens: int) -> None:
        """An iteration of a node; one without prompt tokens says nothing here."""
        if prefill_tokens > 0:
            self._sums.iterations += 1
            self._sums.iteration_tokens += prefill_tokens

    # ------------------------------------------------------------ pauses of branches

    def pauses(self, branch: BranchKey, now_s: float) -> None:
        """None of the branch's requests is under way any more."""
        self._pausing[branch] = now_s
        self._pausing.move_to_end(branch)
        if len(self._pausing) > MOST_PAUSING:
            self._pausing.popitem(last=False)

    def resumes(self, branch: BranchKey, now_s: float) -> None:
        """The branch's next request has come."""
        closed_s = self._pausing.pop(branch, None)
        if closed_s is not None:
            self._sums.pauses += 1
            self._sums.pause_s += now_s - closed_s

    def forget(self, branch: BranchKey) -> None:
        """The branch ended: it does not pause."""
        self._pausing.pop(branch, None)

    # ------------------------------------------------------------ inside

    def _start(self) -> float:
        assert self.start_s is not None
        return self.start_s

    def _move(self, request_id: str, stage: int, now_s: float) -> None:
        self._grow(now_s)
        before = self.stages.get(request_id)
        if before is not None:
            self.counts[before] -= 1
        self.stages[request_id] = stage
        self.counts[stage] += 1

    def _grow(self, now_s: float) -> None:
        passed_s = now_s - self._at_s
        if passed_s > 0.0:
            areas, counts = self._sums.areas, self.counts
            for stage in range(4):
                areas[stage] += counts[stage] * passed_s
            self._at_s = now_s

    def _record(self, end_s: float) -> SliceRecord:
        sums, slice_s = self._sums, self._slice_s
        begun, done = max(1, sums.arrivals), max(1, sums.completions)
        waiting, prefill, handover, decode = (area / slice_s for area in sums.areas)
        in_flight = waiting + prefill + handover + decode
        pause_s = sums.pause_s / sums.pauses if sums.pauses else 0.0
        service_s = sums.service_s / begun
        spread = sums.service_s2 / begun - service_s * service_s
        return SliceRecord(
            start_s=self._start(),
            end_s=end_s,
            arrivals=sums.arrivals,
            completions=sums.completions,
            uncached_tokens=sums.uncached_tokens / begun,
            cached_tokens=sums.cached_tokens / begun,
            attention_pairs=sums.pairs / begun,
            restored_tokens=sums.restored_tokens / begun,
            output_tokens=sums.output_tokens / done,
            accepted_per_iteration=1.0,
            tokens_per_iteration=sums.iteration_tokens / max(1, sums.iterations),
            in_flight=in_flight,
            decode_queue=handover,
            prefill_queue=waiting,
            # Little's law: what pauses is the rate of requests times their pause. Counting the
            # silent branches instead would take those that never return for live ones.
            branches=in_flight + sums.pauses / slice_s * pause_s if sums.pauses else 0.0,
            pause_s=pause_s,
            squared_variation=max(0.0, spread) / (service_s * service_s) if service_s else 0.0,
            service_s=service_s,
            wait_s=sums.wait_s / begun,
            prefill_running=prefill,
            thin=min(sums.arrivals, sums.completions) < self._least,
        )


def pooled(slices: tuple[SliceRecord, ...]) -> SliceRecord:
    """Several slices as one: means per request weighed by requests, counts by time."""

    def mean(name: str, weights: list[float]) -> float:
        weight = sum(weights)
        if not weight:
            return 0.0
        terms = (getattr(s, name) * w for s, w in zip(slices, weights, strict=True))
        return float(sum(terms) / weight)

    begun = [float(s.arrivals) for s in slices]
    done = [float(s.completions) for s in slices]
    passed_s = [s.end_s - s.start_s for s in slices]
    service_s = mean("service_s", begun)
    squares = sum(
        (s.squared_variation + 1.0) * s.service_s**2 * n
        for s, n in zip(slices, begun, strict=True)
    )
    varied = squares / max(1.0, sum(begun)) / service_s**2 - 1.0 if service_s else 0.0
    paused = [n if s.branches else 0.0 for s, n in zip(slices, begun, strict=True)]
    in_flight, pause_s = mean("in_flight", passed_s), mean("pause_s", paused)
    rate = sum(paused) / max(1e-9, sum(passed_s))
    return SliceRecord(
        start_s=slices[0].start_s,
        end_s=slices[-1].end_s,
        arrivals=int(sum(begun)),
        completions=int(sum(done)),
        uncached_tokens=mean("uncached_tokens", begun),
        cached_tokens=mean("cached_tokens", begun),
        attention_pairs=mean("attention_pairs", begun),
        restored_tokens=mean("restored_tokens", begun),
        output_tokens=mean("output_tokens", done),
        accepted_per_iteration=mean("accepted_per_iteration", done) or 1.0,
        tokens_per_iteration=mean("tokens_per_iteration", begun),
        in_flight=in_flight,
        decode_queue=mean("decode_queue", passed_s),
        prefill_queue=mean("prefill_queue", passed_s),
        branches=mean("branches", passed_s) if rate else 0.0,
        pause_s=pause_s,
        squared_variation=max(0.0, varied),
        service_s=service_s,
        wait_s=mean("wait_s", begun),
        prefill_running=mean("prefill_running", passed_s),
        thin=any(s.thin for s in slices),
    )


def with_pauses(slices: Sequence[SliceRecord]) -> tuple[SliceRecord, ...]:
    """Slices in which no pause ended take the mean pause of the others: the first one after a
    start knows of none that had begun before."""
    known = [one for one in slices if one.branches]
    pause_s = pooled(tuple(known)).pause_s if known else 0.0

    def filled(one: SliceRecord) -> SliceRecord:
        if one.branches:
            return one
        pausing = one.arrivals / (one.end_s - one.start_s) * pause_s
        return msgspec.structs.replace(one, branches=one.in_flight + pausing, pause_s=pause_s)

    return tuple(map(filled, slices))
