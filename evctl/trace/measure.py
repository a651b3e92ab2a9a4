"""What a replay measures: one record a request, gauges over time, and the result of it all."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import IO

import msgspec

from evctl.trace.stats import Spread, spread
from evctl.trace.verify import Verdict

Clock = Callable[[], float]


class RequestRecord(msgspec.Struct, frozen=True):
    """One line of --record. Times in seconds; start_s since the start of the replay.

    ttft_s, e2e_s: from the first attempt, so that waits after 429 count. tpot_s: mean time
    between output tokens. cached_tokens: None where the server does not say. ideal_tokens: prompt
    tokens whose KV an earlier request made. hash: of the emitted tokens, or of the text where the
    server sends no ids. server_id: the target's own name for the request. error: why it failed,
    "" when it did not.
    """

    id: str
    agent: int
    conversation: str
    branch: str
    index: int
    kind: str
    op: str
    version: int
    start_s: float
    pause_s: float
    prompt_tokens: int
    ideal_tokens: int
    cached_tokens: int | None
    output_tokens: int
    ttft_s: float | None
    e2e_s: float | None
    tpot_s: float | None
    retries: int
    prompt_hash: str
    hash: str
    server_id: str = ""
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error


class Progress(msgspec.Struct, frozen=True):
    """How a replay stands. planned: requests it will send at most, None when not known."""

    elapsed_s: float
    planned: int | None
    issued: int
    done: int
    failed: int
    retries: int
    in_flight: int
    live_branches: int
    throughput_rps: float
    mean_ttft_s: float | None
    verifying: tuple[int, int] | None = None
    """(probes rerun, probes in all) once the replay is over and answers are being checked."""


class Gauge:
    """A number over time: its maximum and its time average."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start_s = self._since_s = clock()
        self._area = 0.0
        self.now = 0
        self.most = 0

    def add(self, change: int) -> None:
        self._area += self.now * (self._clock() - self._since_s)
        self._since_s = self._clock()
        self.now += change
        self.most = max(self.most, self.now)

    def mean(self) -> float:
        """Since the gauge was made."""
        self.add(0)
        length_s = self._since_s - self._start_s
        return self._area / length_s if length_s > 0 else float(self.now)


class ReplayResult(msgspec.Struct, frozen=True):
    """A whole replay. Counts are of requests, probes not included.

    hit_rate, ideal_hit_rate: shares of the prompt tokens of the requests that were answered and
    whose cached tokens are known. unknown_cached: answered requests whose are not.
    changed_outputs: answers whose ids are not the forced ones. aborted: why it ended early.
    warm_requests: those that found clearly more KV than this replay had made before them: the
    target was warm, and its hit rate says nothing of this replay. interrupted: by a person; what
    was in flight then counts nowhere.
    """

    agents: int
    seed: int
    scale: str
    duration_s: float
    requests: int
    done: int
    failed: int
    retries: int
    prompt_tokens: int
    output_tokens: int
    mean_prompt_tokens: float | None
    hit_rate: float | None
    ideal_hit_rate: float | None
    uncached_tokens_per_request: float | None
    unknown_cached: int
    changed_outputs: int
    ttft_s: Spread
    e2e_s: Spread
    tpot_s: Spread
    pause_s: float | None
    throughput_rps: float
    in_flight_mean: float
    in_flight_max: int
    branches_mean: float
    branches_max: int
    branches: int
    conversations: int
    errors: dict[str, int]
    verdict: Verdict | None = None
    aborted: str = ""
    warm_requests: int = 0
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """It came to its end, nothing failed, every output was the forced one, and no checked
        token was wrong."""
        whole = not (self.failed or self.aborted or self.interrupted) and self.done > 0
        clean = whole and not self.changed_outputs
        return clean and (self.verdict is None or self.verdict.ok)


class Recorder:
    """Collects records while a replay runs; a few numbers a request stay in memory.

    slack_tokens: found KV beyond the ideal that still says nothing of what was there before.
    """

    MAX_ERRORS = 50
    """Distinct reasons of failure that are kept apart."""

    def __init__(
        self, clock: Clock, file: IO[bytes] | None = None, *, slack_tokens: int = 0
    ) -> None:
        self._clock = clock
        self._file = file
        self._slack_tokens = slack_tokens
        self._encoder = msgspec.json.Encoder()
        self.start_s = clock()
        self._end_s: float | None = None
        self.in_flight = Gauge(clock)
        self.live_branches = Gauge(clock)
        self.counts: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self._ttft_s: list[float] = []
        self._e2e_s: list[float] = []
        self._tpot_s: list[float] = []
        self._pause_s: list[float] = []

    def elapsed_s(self) -> float:
        """Since the start; stands still once the result was taken."""
        return (self._clock() if self._end_s is None else self._end_s) - self.start_s

    def issued(self) -> None:
        """A request is about to be sent."""
        self.counts["issued"] += 1
        self.in_flight.add(1)

    def ended(self, record: RequestRecord, *, changed_output: bool) -> None:
        """A request was answered or failed."""
        self.in_flight.add(-1)
        counts = self.counts
        counts["retries"] += record.retries
        counts["all_prompt_tokens"] += record.prompt_tokens
        self._pause_s.append(record.pause_s)
        if record.ok:
            counts["done"] += 1
            counts["output_tokens"] += record.output_tokens
            counts["changed_outputs"] += changed_output
            self._times(record)
            self._reuse(record)
        else:
            counts["failed"] += 1
            known = record.error in self.errors or len(self.errors) < self.MAX_ERRORS
            self.errors[record.error if known else "other reasons"] += 1
        if self._file is not None:
            self._file.write(self._encoder.encode(record) + b"\n")
            self._file.flush()

    def dropped(self) -> None:
        """A request was cancelled with the replay: it neither failed nor was answered."""
        self.in_flight.add(-1)

    def _times(self, record: RequestRecord) -> None:
        if record.ttft_s is not None:
            self._ttft_s.append(record.ttft_s)
        if record.e2e_s is not None:
            self._e2e_s.append(record.e2e_s)
        if record.tpot_s is not None:
            self._tpot_s.append(record.tpot_s)

    def _reuse(self, record: RequestRecord) -> None:
        if record.cached_tokens is None:
            self.counts["unknown_cached"] += 1
            return
        self.counts["prompt_tokens"] += record.prompt_tokens
        self.counts["cached_tokens"] += record.cached_tokens
        self.counts["ideal_tokens"] += record.ideal_tokens
        found_more = record.cached_tokens > record.ideal_tokens + self._slack_tokens
        self.counts["warm_requests"] += found_more

    def progress(self, planned: int | None, verifying: tuple[int, int] | None = None) -> Progress:
        elapsed_s = self.elapsed_s()
        ttft = self._ttft_s
        return Progress(
            elapsed_s=elapsed_s,
            planned=planned,
            issued=self.counts["issued"],
            done=self.counts["done"],
            failed=self.counts["failed"],
            retries=self.counts["retries"],
            in_flight=self.in_flight.now,
            live_branches=self.live_branches.now,
            throughput_rps=self.counts["done"] / elapsed_s if elapsed_s > 0 else 0.0,
            mean_ttft_s=math.fsum(ttft) / len(ttft) if ttft else None,
            verifying=verifying,
        )

    def result(
        self, *, agents: int, seed: int, scale: str, aborted: str, interrupted: bool = False
    ) -> ReplayResult:
        """Closes the measurement: time stands still from here on."""
        self._end_s = self._clock()
        counts = self.counts
        duration_s = self.elapsed_s()
        ended = counts["done"] + counts["failed"]
        known = counts["done"] - counts["unknown_cached"]
        prompt, cached = counts["prompt_tokens"], counts["cached_tokens"]
        return ReplayResult(
            agents=agents,
            seed=seed,
            scale=scale,
            duration_s=duration_s,
            requests=ended,
            done=counts["done"],
            failed=counts["failed"],
            retries=counts["retries"],
            prompt_tokens=counts["all_prompt_tokens"],
            output_tokens=counts["output_tokens"],
            mean_prompt_tokens=_ratio(counts["all_prompt_tokens"], ended),
            hit_rate=_ratio(cached, prompt),
            ideal_hit_rate=_ratio(counts["ideal_tokens"], prompt),
            uncached_tokens_per_request=_ratio(prompt - cached, known),
            unknown_cached=counts["unknown_cached"],
            changed_outputs=counts["changed_outputs"],
            ttft_s=spread(self._ttft_s),
            e2e_s=spread(self._e2e_s),
            tpot_s=spread(self._tpot_s),
            pause_s=spread(self._pause_s).mean,
            throughput_rps=counts["done"] / duration_s if duration_s > 0 else 0.0,
            in_flight_mean=self.in_flight.mean(),
            in_flight_max=self.in_flight.most,
            branches_mean=self.live_branches.mean(),
            branches_max=self.live_branches.most,
            branches=counts["branches"],
            conversations=counts["conversations"],
            errors=dict(self.errors),
            aborted=aborted,
            warm_requests=counts["warm_requests"],
            interrupted=interrupted,
        )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def tokens_hash(ids: list[int] | tuple[int, ...]) -> str:
    """Sixteen hex digits that stand for a list of token ids."""
    return blake2b(msgspec.json.encode(ids), digest_size=8).hexdigest()


def text_hash(text: str) -> str:
    """The same for text."""
    return "text:" + blake2b(text.encode(), digest_size=8).hexdigest()


def open_record(path: Path | None) -> IO[bytes] | None:
    """The file of --record, made anew."""
    return path.open("wb") if path is not None else None
