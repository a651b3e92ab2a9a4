"""Closed loads of made-up agents: as many branches as asked for, each working for ever.

Recorded conversations change while they are played; these do not, so that what a split does to
them can be measured, and two minutes of one may be compared with two of another.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from fractions import Fraction
from typing import IO, Final, cast

import msgspec

from evctl.core.errors import EvctlError
from evctl.trace.driver import Replay
from evctl.trace.http import HttpTarget
from evctl.trace.measure import RequestRecord
from evctl.trace.plan import ReplayOptions
from evctl.trace.schema import FORMAT, VERSION, Branch, Conversation, Trace, TraceHeader
from evctl.trace.schema import TraceRequest as Request

FOREVER: Final = 10**9
END_TIMEOUT_S: Final = 60.0


class Shape(msgspec.Struct, frozen=True):
    """Tokens and seconds of a branch's requests: the first prompt, then what each adds, what is
    put out, and the pause before each. Means of exponential distributions, except `first_tokens`;
    turns: requests of a conversation, after which its agent begins another one."""

    name: str
    first_tokens: int
    new_tokens: int
    output_tokens: int
    pause_s: float
    turns: int


PREFILL_HEAVY: Final = Shape("prefill-heavy", 256, 160, 6, 0.5, 8)
DECODE_HEAVY: Final = Shape("decode-heavy", 64, 12, 64, 0.5, 8)


def closed_trace(shape: Shape, conversations: int, block_tokens: int, seed: int) -> Trace:
    """Conversations of that shape, to be played at scale 1."""
    draw = random.Random(f"closed-{seed}")
    return Trace(
        TraceHeader(FORMAT, VERSION, block_tokens, source=f"made up: {shape.name}"),
        tuple(_conversation(shape, i, block_tokens, draw) for i in range(conversations)),
    )


def _conversation(
    shape: Shape, number: int, block_tokens: int, draw: random.Random
) -> Conversation:
    requests: list[Request] = []
    prompt_tokens, kept = shape.first_tokens, 0
    for turn in range(shape.turns):
        blocks = prompt_tokens // block_tokens
        output_tokens = 1 + round(draw.expovariate(1 / shape.output_tokens))
        requests.append(
            Request(
                in_tokens=prompt_tokens,
                out_tokens=output_tokens,
                wait_s=draw.expovariate(1 / shape.pause_s) if turn else 0.0,
                keep=kept,
                add=((kept, blocks - kept),) if blocks > kept else (),
            )
        )
        kept = blocks
        prompt_tokens += output_tokens + 1 + round(draw.expovariate(1 / shape.new_tokens))
    return Conversation(f"closed-{number}", (Branch("main", tuple(requests)),))


class Seen(msgspec.Struct, frozen=True):
    """What came of the requests that ended between two moments. None where none did."""

    requests: int
    failed: int
    throughput_rps: float
    ttft_s: float | None
    e2e_s: float | None


class ClosedLoad:
    """Agents that work until stop(), in a thread of their own. Times are of time.monotonic."""

    def __init__(self, trace: Trace, gateway: str, agents: int, seed: int) -> None:
        self._records: list[tuple[float, RequestRecord]] = []
        self._options = ReplayOptions(
            agents=agents,
            scale=Fraction(1),
            seed=seed,
            start=(0.0, 0.75),
            max_requests=FOREVER,
            run=f"closed-{seed}-{time.time_ns():x}",
        )
        self._trace = trace
        self._gateway = gateway
        self._replay: Replay | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="closed-load", daemon=True)

    def __enter__(self) -> ClosedLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._loop is not None and self._replay is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._replay.interrupt)
        self._thread.join(END_TIMEOUT_S)

    def seen(self, start_s: float, end_s: float) -> Seen:
        """Raises EvctlError (EV-1646) when the load ended by itself."""
        if not self._thread.is_alive():
            raise EvctlError(
                what="the load of this bench ended before its time",
                why=repr(self._problem) if self._problem else "every request failed",
                next_step="look at the engines: evctl bench live leaves no logs, evctl up does",
                code="EV-1646",
            ) from self._problem
        ended = [record for at_s, record in self._records if start_s <= at_s < end_s]
        good = [record for record in ended if record.ok]
        return Seen(
            requests=len(good),
            failed=len(ended) - len(good),
            throughput_rps=len(good) / (end_s - start_s),
            ttft_s=_mean([r.ttft_s for r in good if r.ttft_s is not None]),
            e2e_s=_mean([r.e2e_s for r in good if r.e2e_s is not None]),
        )

    # ------------------------------------------------------------ the thread

    def write(self, line: bytes) -> int:
        """One record, as Replay writes them into a file."""
        self._records.append((time.monotonic(), msgspec.json.decode(line, type=RequestRecord)))
        return len(line)

    def flush(self) -> None:
        """As of a file."""

    def _run(self) -> None:
        try:
            asyncio.run(self._play())
        except BaseException as error:
            self._problem = error

    async def _play(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with HttpTarget(self._gateway) as target:
            await target.prepare()
            sink = cast("IO[bytes]", self)
            self._replay = Replay(self._trace, target, self._options, record=sink)
            await self._replay.run()


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
