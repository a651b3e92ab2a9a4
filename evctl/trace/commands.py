"""What `evctl trace` does, without the command line: paths and values in, data out."""

from __future__ import annotations

import asyncio
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec

from evctl.core.errors import EvctlError, UsageError
from evctl.trace import files
from evctl.trace.content import DEFAULT_VOCAB, parse_scale
from evctl.trace.driver import Replay
from evctl.trace.http import HttpTarget
from evctl.trace.importers import weka
from evctl.trace.measure import Progress, ReplayResult
from evctl.trace.plan import ReplayOptions
from evctl.trace.stats import TraceStats, measure
from evctl.trace.target import Target
from evctl.trace.verify import TargetVerifier, Verifier


def stats(
    path: str | Path, output: str = "table", *, share_prefix: bool = True
) -> list[tuple[str, str]] | dict[str, Any]:
    """Figures of a trace: rows of name and value, or with output "json" an object.

    path may be `sample`. Raises EvctlError.
    """
    found = trace_stats(path, share_prefix=share_prefix)
    if output == "json":
        built: dict[str, Any] = msgspec.to_builtins(found, str_keys=True)
        return {"apiVersion": "evctl/v1", "kind": "TraceStats", **built}
    return found.rows()


def trace_stats(path: str | Path, *, share_prefix: bool = True) -> TraceStats:
    """The same as a struct."""
    return measure(*files.open_trace(files.locate(path), share_prefix=share_prefix))


def import_trace(source: str | Path, destination: Path, *, share_prefix: bool = True) -> int:
    """Write a trace of any known form in ours; returns its conversations. Raises EvctlError."""
    header, conversations = files.open_trace(files.locate(source), share_prefix=share_prefix)
    return files.write(destination, header, conversations)


def validate(path: str | Path) -> list[str]:
    """What is wrong with a file, as `FILE:LINE: what`. Foreign forms stop at the first fault."""
    found = files.locate(path)
    try:
        foreign = found.is_dir() or weka.is_weka(found)
        if not foreign:
            return files.validate(found)
        _, conversations = files.open_trace(found)
        for _ in conversations:
            pass
    except EvctlError as error:
        if error.code != files.MALFORMED:
            raise
        return [f"{error.what.removeprefix('cannot read the trace ')}: {error.why}"]
    return []


def replay(
    trace: str | Path,
    target: str | Target,
    *,
    agents: int,
    scale: str | float | Fraction = "1/16",
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
    progress: Callable[[Progress], None] | None = None,
) -> ReplayResult:
    """Replay a trace, path or `sample`, against a URL or a Target; see ReplayOptions.

    `evctl.bench.replay.replay` does the same and tells it as a BenchReport.

    verify: every Nth request is probed and compared with verify_target (URL of an engine that
    caches nothing, or a Verifier). record: JSON lines, one RequestRecord a request.
    Raises EvctlError for what keeps it from starting, ForGoodError where the target refuses every
    request; other failures of requests are in the result. In the main thread a first Ctrl-C ends
    it early, with a result that says so; the second raises KeyboardInterrupt.
    """
    options = ReplayOptions(
        run=secrets.token_hex(4),
        agents=agents,
        scale=parse_scale(scale),
        seed=seed,
        start=start,
        gap_cap_s=gap_cap_s,
        time_scale=time_scale,
        max_requests=max_requests,
        verify_every=verify,
        exact=exact,
        vocab=vocab,
    )
    loaded = files.load(files.locate(trace), share_prefix=share_prefix)

    async def run() -> ReplayResult:
        async with AsyncExitStack() as stack:
            to = await _open_target(stack, target, api_key, model)
            verifier = await _open_verifier(stack, verify_target)
            file = None
            if record is not None:
                file = stack.enter_context(_open_record(record))
            work = Replay(loaded, to, options, verifier=verifier, record=file, progress=progress)
            with _interrupting(work):
                return await work.run()

    return asyncio.run(run())


@contextmanager
def _interrupting(work: Replay) -> Iterator[None]:
    """Ctrl-C ends the replay, not the process: what was measured is told."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        loop.remove_signal_handler(signal.SIGINT)  # from here on it ends the process
        work.interrupt()

    loop.add_signal_handler(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _open_record(path: Path) -> Any:
    try:
        return path.open("wb")
    except OSError as error:
        raise UsageError(
            what=f"cannot write the record {path}",
            why=error.strerror or str(error),
            next_step="name a file in a folder that exists and can be written",
            code="EV-1609",
        ) from error


async def _open_target(
    stack: AsyncExitStack, target: str | Target, api_key: str, model: str
) -> Target:
    if not isinstance(target, str):
        return target
    if target == "sim":
        raise UsageError(
            what="cannot replay on the simulator",
            why="it is not built yet",
            next_step="give the URL of a gateway",
            code="EV-1615",
        )
    http = await stack.enter_async_context(HttpTarget(target, api_key=api_key, model=model))
    await http.prepare()
    return http


async def _open_verifier(stack: AsyncExitStack, target: str | Verifier | None) -> Verifier | None:
    if not isinstance(target, str):
        return target
    http = await stack.enter_async_context(HttpTarget(target))
    await http.prepare()
    return TargetVerifier(http)
