"""Tokens on their way from engines to whoever asked, in order, without gaps or repeats.

A request's tokens come from two nodes over two connections, so those of the decode node may be
here first. They wait a moment for what is missing; if it does not come, the request ends in an
error rather than in a wrong text.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable

import msgspec

from evctl.control.frontdoor import InferenceRequest, OverloadedError
from evctl.core.sampling import FinishReason
from evctl.wire.messages import Tokens

GAP_PATIENCE_S = 5.0
MAX_HELD_MESSAGES = 1_024
MAX_BUFFERED_TOKENS = 65_536
"""Unread tokens of one request: a whole context. Beyond that its reader has stopped."""
MAX_REMEMBERED = 8_192


class Stream:
    """One request's output. Written by Streams, read by one task."""

    def __init__(self, request: InferenceRequest, arrived_s: float) -> None:
        self.request = request
        self.arrived_s = arrived_s
        self.sources: tuple[str, ...] = ()
        """Nodes whose tokens count: those of the last dispatch."""
        self.received = 0
        self.ended = False
        """The last message is in the buffer, or was read."""
        self.waits_since_s: float | None = None
        """Since when something is missing."""
        self.rejected: OverloadedError | None = None
        self._buffer: list[Tokens] = []
        self._buffered_tokens = 0
        self._held: dict[int, Tokens] = {}
        self._ready = asyncio.Event()

    async def read(self) -> Tokens:
        """What has come since the last call, as one message. Raises OverloadedError."""
        await self._ready.wait()
        self._ready.clear()
        if self.rejected is not None:
            raise self.rejected
        batch = self._buffer
        self._buffer = []
        self._buffered_tokens = 0
        return merge(batch)

    def take(self, message: Tokens, now_s: float) -> str:
        """Add a message. Returns why the request cannot go on, "" if it can."""
        if self.ended:
            return ""
        if message.start > self.received:
            held = self._held.get(message.start)
            if held is None or _reach(message) > _reach(held):
                self._held[message.start] = message
            if self.waits_since_s is None:
                self.waits_since_s = now_s
            return "too many tokens came out of order" if self._too_many_held else ""
        self._append(message)
        self._append_held()
        if not self._held:
            self.waits_since_s = None
        if self._buffered_tokens > MAX_BUFFERED_TOKENS:
            return "its reader does not take the tokens"
        return ""

    def end(self, reason: str, error: str) -> None:
        """The last message, made here: nothing more will come."""
        if not self.ended:
            self._put(
                Tokens(self.request.request_id, self.received, (), finish=reason, error=error)
            )

    def reject(self, error: OverloadedError) -> None:
        self.ended = True
        self.rejected = error
        self._ready.set()

    @property
    def _too_many_held(self) -> bool:
        return len(self._held) > MAX_HELD_MESSAGES

    def _append(self, message: Tokens) -> None:
        repeated = self.received - message.start
        if repeated:
            message = msgspec.structs.replace(
                message,
                start=self.received,
                token_ids=message.token_ids[repeated:],
                logprobs=message.logprobs[repeated:],
            )
        if message.token_ids or message.finish:
            self._put(message)

    def _append_held(self) -> None:
        """What waited for the tokens that are here now."""
        while self._held and (self.ended or min(self._held) <= self.received):
            message = self._held.pop(min(self._held))
            if not self.ended:
                self._append(message)

    def _put(self, message: Tokens) -> None:
        self.received += len(message.token_ids)
        self._buffered_tokens += len(message.token_ids)
        self.ended = self.ended or message.finish is not None
        self._buffer.append(message)
        self._ready.set()


def _reach(message: Tokens) -> tuple[bool, int]:
    """Of two messages with one start, the one that reaches further says all of the other."""
    return message.finish is not None, len(message.token_ids)


def merge(messages: list[Tokens]) -> Tokens:
    """Messages that follow each other, as one. At least one."""
    if len(messages) == 1:
        return messages[0]
    last = messages[-1]
    return Tokens(
        request_id=last.request_id,
        start=messages[0].start,
        token_ids=tuple(t for m in messages for t in m.token_ids),
        logprobs=tuple(p for m in messages for p in m.logprobs),
        finish=last.finish,
        error=last.error,
        cached_tokens=max(m.cached_tokens for m in messages),
    )


class Streams:
    """All open streams. give_up(request_id): a stream cannot go on, stop its request.

    first_tokens(request_id, received_before, received): for measuring.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        give_up: Callable[[str], None],
        progressed: Callable[[str, int, int], None],
    ) -> None:
        self._clock = clock
        self._give_up = give_up
        self._progressed = progressed
        self._open: dict[str, Stream] = {}
        self._closed: OrderedDict[str, None] = OrderedDict()
        """Ended lately: their stragglers need no answer."""
        self.counters: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, request_id: str) -> Stream | None:
        return self._open.get(request_id)

    def open(self, request: InferenceRequest) -> Stream:
        """Raises ValueError when the id is in use."""
        if request.request_id in self._open:
            raise ValueError(f"request id {request.request_id!r} is in use")
        stream = self._open[request.request_id] = Stream(request, self._clock())
        return stream

    def close(self, request_id: str) -> None:
        if self._open.pop(request_id, None) is not None:
            self._remember(request_id)

    def waited_s(self, request_id: str) -> float:
        """Since it arrived; 0 for one that is not open."""
        stream = self._open.get(request_id)
        return 0.0 if stream is None else max(0.0, self._clock() - stream.arrived_s)

    def dispatched(self, request_id: str, nodes: tuple[str, ...]) -> None:
        if (stream := self._open.get(request_id)) is not None:
            stream.sources = nodes

    def on_tokens(self, node: str, message: Tokens) -> bool:
        """False for a request that nobody here knows, said once: the sender should stop it."""
        stream = self._open.get(message.request_id)
        if stream is None:
            self.counters["tokens_unknown"] += 1
            known = message.request_id in self._closed
            self._remember(message.request_id)
            return known
        if node not in stream.sources:
            self.counters["tokens_of_others"] += 1
            return True
        before = stream.received
        why = stream.take(message, self._clock())
        if stream.received != before:
            self._progressed(message.request_id, before, stream.received)
        if why:
            self._break(stream, why)
        return True

    def reject(self, request_id: str, reason: str, retry_after_s: float) -> None:
        if (stream := self._open.get(request_id)) is not None:
            stream.reject(OverloadedError(reason, retry_after_s))

    def fail(self, request_id: str, reason: str) -> None:
        if (stream := self._open.get(request_id)) is not None:
            stream.end(FinishReason.ERROR, reason)

    def fail_all(self, reason: str) -> None:
        for stream in self._open.values():
            stream.end(FinishReason.ERROR, reason)

    def done(self, request_id: str) -> None:
        """The engine says it is over; its last tokens must be here, or on their way."""
        stream = self._open.get(request_id)
        if stream is not None and not stream.ended and stream.waits_since_s is None:
            stream.waits_since_s = self._clock()

    def excuse(self, gap_s: float) -> None:
        """Nobody could take tokens in for so long: those that wait are given as much more."""
        for stream in self._open.values():
            if stream.waits_since_s is not None:
                stream.waits_since_s += gap_s

    def sweep(self) -> None:
        """End streams that have waited too long for something that is missing."""
        now_s = self._clock()
        for stream in list(self._open.values()):
            since_s = stream.waits_since_s
            if since_s is not None and not stream.ended and now_s - since_s > GAP_PATIENCE_S:
                self._break(stream, "tokens were lost on their way from the engine")

    def _break(self, stream: Stream, why: str) -> None:
        self.counters["streams_broken"] += 1
        stream.end(FinishReason.ERROR, why)
        self._give_up(stream.request.request_id)

    def _remember(self, request_id: str) -> None:
        self._closed[request_id] = None
        if len(self._closed) > MAX_REMEMBERED:
            self._closed.popitem(last=False)
