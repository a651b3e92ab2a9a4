"""One request of a replay: sending, waiting out 429, timing, probing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from evctl.core.errors import EvctlError
from evctl.trace.measure import Clock, Recorder, RequestRecord, text_hash, tokens_hash
from evctl.trace.plan import RetryPolicy
from evctl.trace.target import (
    BranchHeaders,
    BusyError,
    Chunk,
    CompletionRequest,
    ForGoodError,
    Target,
)
from evctl.trace.verify import PROBE_TOKENS, Answer, TargetVerifier, Verifier

MAX_REASON_CHARS = 300


class Quota:
    """Whether another request may be sent: a limit, an end when nothing works any more, and one
    when somebody interrupts. refused: what the target refuses for good, None while it does not."""

    def __init__(self, most: int | None, failures: int) -> None:
        self._left = most
        self._failures_left = self._failures = failures
        self._closed = asyncio.Event()
        self.aborted = ""
        self.interrupted = False
        self.refused: ForGoodError | None = None

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def take(self) -> bool:
        """Claim one request; False when no more are to be sent."""
        if self.closed:
            return False
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self._closed.set()
        return True

    def ended(self, *, ok: bool, why: str = "") -> None:
        """Tell how a request ended: too many failures in a row end the replay."""
        self._failures_left = self._failures if ok else self._failures_left - 1
        if self._failures_left <= 0 and not self.aborted:
            self.aborted = f"{self._failures} requests in a row failed, the last: {why}"
            self._closed.set()

    def refuse(self, error: ForGoodError) -> None:
        """No request will ever be taken: end the replay at the first that shows it."""
        self.refused = self.refused or error
        self.aborted = self.aborted or error.why
        self._closed.set()

    def interrupt(self) -> None:
        """Somebody wants it to end now."""
        self.interrupted = True
        self._closed.set()

    async def wait_closed(self, timeout_s: float) -> None:
        """Sleep, but not beyond the last request."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._closed.wait()
        except TimeoutError:
            pass


class Probe(msgspec.Struct, frozen=True):
    """A probe that the target answered. checks: id of the request whose KV it reads."""

    checks: str
    request: CompletionRequest
    answer: Answer


class _Heard:
    """An answer while it arrives."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.first_s: float | None = None
        self.last_s = 0.0
        self.tokens = 0
        self.ids: list[int] = []
        self.text: list[str] = []
        self.cached_tokens: int | None = None
        self.server_id = ""

    def add(self, chunk: Chunk) -> None:
        if chunk.tokens:
            self.last_s = self._clock()
            self.first_s = self.last_s if self.first_s is None else self.first_s
        self.tokens += chunk.tokens
        self.ids.extend(chunk.token_ids)
        self.text.append(chunk.text)
        self.server_id = chunk.server_id or self.server_id
        if chunk.usage is not None:
            self.tokens = chunk.usage.output_tokens
            self.cached_tokens = chunk.usage.cached_tokens

    def hash(self) -> str:
        return tokens_hash(self.ids) if self.ids else text_hash("".join(self.text))


class Exchange:
    """Sends the requests of a replay and records what came of them."""

    def __init__(
        self,
        target: Target,
        recorder: Recorder,
        quota: Quota,
        *,
        clock: Clock,
        retry: RetryPolicy,
        timeout_s: float,
        probe_every: int,
    ) -> None:
        self._target = target
        self._recorder = recorder
        self._quota = quota
        self._clock = clock
        self._retry = retry
        self._timeout_s = timeout_s
        self._probe_every = probe_every
        self._sent = 0
        self.probes: list[Probe] = []
        self.lost_probes = 0
        self._limits: set[asyncio.Timeout] = set()

    def interrupt(self) -> None:
        """Send nothing more and drop what is in flight, which counts nowhere."""
        self._quota.interrupt()
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(0.0)

    async def send(
        self,
        agent: int,
        request: CompletionRequest,
        *,
        index: int,
        conversation: str,
        pause_s: float,
        ideal_tokens: int,
    ) -> bool:
        """Run a request to its end, and its probe if it is its turn; returns whether it is ok.

        One that is dropped by an interrupt is not recorded.
        """
        branch = request.branch or BranchHeaders(branch=request.id, session="")
        self._sent += 1
        probes = self._probe_every and self._sent % self._probe_every == 0
        started_s = self._clock()
        self._recorder.issued()
        try:
            heard, retries, error = await self._attempts(request)
        except asyncio.CancelledError:
            self._recorder.dropped()
            raise
        if error and self._quota.interrupted:
            self._recorder.dropped()
            return False
        whole = heard.first_s is not None and not error
        tpot_s = None
        if whole and heard.tokens > 1 and heard.first_s is not None:
            tpot_s = (heard.last_s - heard.first_s) / (heard.tokens - 1)
        record = RequestRecord(
            id=request.id,
            agent=agent,
            conversation=conversation,
            branch=branch.branch,
            index=index,
            kind=branch.kind,
            op=branch.op,
            version=branch.version,
            start_s=started_s - self._recorder.start_s,
            pause_s=pause_s,
            prompt_tokens=len(request.prompt),
            ideal_tokens=ideal_tokens,
            cached_tokens=heard.cached_tokens,
            output_tokens=heard.tokens,
            ttft_s=None if heard.first_s is None else heard.first_s - started_s,
            e2e_s=heard.last_s - started_s if whole else None,
            tpot_s=tpot_s,
            retries=retries,
            prompt_hash=tokens_hash(request.prompt),
            hash=heard.hash(),
            server_id=heard.server_id,
            error=error,
        )
        changed = bool(heard.ids) and request.forced is not None and heard.ids != request.forced
        self._recorder.ended(record, changed_output=changed)
        self._quota.ended(ok=record.ok, why=error)
        if probes:
            await self._probe(request, heard if record.ok else None)
        return record.ok

    async def _attempts(self, request: CompletionRequest) -> tuple[_Heard, int, str]:
        """The answer, how often it was turned away first, and why it failed ("": it did not)."""
        retries = 0
        while True:
            heard = _Heard(self._clock)
            try:
                async with self._limit():
                    async for chunk in self._target.complete(request):
                        heard.add(chunk)
            except BusyError as busy:
                if retries >= self._retry.attempts or self._quota.interrupted:
                    return heard, retries, f"turned away {retries + 1} times"
                retries += 1
                await self._wait(busy)
                continue
            except ForGoodError as error:
                self._quota.refuse(error)
                return heard, retries, error.why[:MAX_REASON_CHARS]
            except TimeoutError:
                return heard, retries, f"no end after {self._timeout_s:g} s"
            except EvctlError as error:
                return heard, retries, error.why[:MAX_REASON_CHARS]
            if heard.tokens != request.max_tokens:
                return heard, retries, f"{heard.tokens} tokens came, not {request.max_tokens}"
            return heard, retries, ""

    @asynccontextmanager
    async def _limit(self) -> AsyncIterator[None]:
        """At most as long as one request may take; an interrupt ends it at once."""
        async with asyncio.timeout(0 if self._quota.interrupted else self._timeout_s) as limit:
            self._limits.add(limit)
            try:
                yield
            finally:
                self._limits.discard(limit)

    async def _wait(self, busy: BusyError) -> None:
        """Until the target wants to be asked again, or an interrupt."""
        wait_s = min(busy.retry_after_s, self._retry.longest_s)
        try:
            async with self._limit():
                await asyncio.sleep(wait_s)
        except TimeoutError:
            pass

    async def _probe(self, request: CompletionRequest, heard: _Heard | None) -> None:
        if heard is None:
            self.lost_probes += 1
            return
        output = heard.ids or request.forced or []
        probe = CompletionRequest(
            id=f"{request.id}/probe",
            prompt=request.prompt + output,
            max_tokens=PROBE_TOKENS,
            logprobs=True,
        )
        answer = await self._answer(TargetVerifier(self._target), probe)
        if answer is None:
            self.lost_probes += 1
        else:
            self.probes.append(Probe(request.id, probe, answer))

    async def end_branch(self, branch: str) -> bool:
        """Tell the target that a branch is over; whether it heard that."""
        return await self._target.end_branch(branch)

    async def rerun(self, verifier: Verifier, request: CompletionRequest) -> Answer | None:
        """The right answer to a probe, None when there is none to be had."""
        return await self._answer(verifier, request)

    async def _answer(self, verifier: Verifier, request: CompletionRequest) -> Answer | None:
        retries = 0
        while True:
            try:
                async with self._limit():
                    return await verifier.rerun(request)
            except BusyError as busy:
                if retries >= self._retry.attempts or self._quota.interrupted:
                    return None
                retries += 1
                await self._wait(busy)
            except (TimeoutError, EvctlError):
                return None
