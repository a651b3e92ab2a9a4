"""Blocks from a peer's L2 into ours, verified, against moving the same bytes without any of that.

`python -m evengine.benches.transfer BACKEND --repeats N`. shm is held against a memmove between
two buffers of this process, mooncake against its library's own batch call, over the same memory.
The sides take turns. Prints a line of JSON for each shape. Two times for every run of a side:
from the call until the last block is verified (or copied), and the process's CPU seconds.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Callable, Sequence

from evctl.core.errors import EvctlError
from evengine.benches.reader import Reader, ReadFailedError
from evengine.benches.source import Source
from evengine.main import SWITCH_S
from evengine.ports import Slot
from evengine.transfer.mooncake_client import check, import_engine

SHAPES = {"contiguous": 1, "scattered": 2}
"""Every such slot holds a block that is asked for."""
REACH_S = 20.0
Call = Callable[[], object]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m evengine.benches.transfer")
    parser.add_argument("backend", choices=["shm", "mooncake"])
    parser.add_argument("--blocks", type=int, default=256)
    parser.add_argument("--block-bytes", type=int, default=64 << 10)
    parser.add_argument("--repeats", type=int, default=31)
    options = parser.parse_args(argv)
    sys.setswitchinterval(SWITCH_S)
    total = options.blocks * max(SHAPES.values())
    try:
        source = Source(options.backend, total, options.block_bytes)
        reader = Reader(options.backend, source.address, total, options.block_bytes)
    except EvctlError as error:
        print(error.render(), file=sys.stderr)
        return error.exit_code
    plain = plain_copies(options.backend, reader)
    for shape, step in SHAPES.items():
        slots = range(0, options.blocks * step, step)
        figures = measure(reader, slots, plain(slots), options.repeats)
        print(json.dumps({"shape": shape, **figures}), flush=True)
    print(json.dumps({"damaged": noticed(source, reader, range(options.blocks))}), flush=True)
    source.close()
    reader.close()
    return 0


def measure(
    reader: Reader, slots: Sequence[Slot], plain: Call, repeats: int
) -> dict[str, list[float]]:
    """Seconds of each run, ours and the plain copy in turn. A block that was not verified is a
    RuntimeError."""
    reach(reader, slots)
    plain()
    found: dict[str, list[float]] = {
        "ours_s": [], "ours_cpu_s": [], "plain_s": [], "plain_cpu_s": []
    }  # fmt: skip
    for _ in range(repeats):
        reader.clear(slots)
        ours = timed(lambda: must_be_whole(reader.read(slots)))
        for name, taken_s in zip(found, [*ours, *timed(plain)], strict=True):
            found[name].append(taken_s)
    return found


def timed(call: Call) -> tuple[float, float]:
    """Wall and CPU seconds of a call."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall_s, time.process_time() - cpu_s


def noticed(source: Source, reader: Reader, slots: Sequence[Slot]) -> int:
    """How many of two damaged blocks the reader refuses, beside all the others."""
    some = (slots[0], slots[len(slots) // 2])
    for slot in some:
        source.damage(slot)
    reader.clear(slots)
    faults = reader.read(slots)
    for slot in some:
        source.damage(slot)
    return len(faults)


def reach(reader: Reader, slots: Sequence[Slot]) -> None:
    """Until the session is open, for a bounded time; the first read pays for page faults too."""
    end_s = time.monotonic() + REACH_S
    while True:
        try:
            must_be_whole(reader.read(slots))
            return
        except ReadFailedError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.1)
            reader.transfer.connect(reader.source)


def must_be_whole(faults: Sequence[str]) -> None:
    if faults:
        raise RuntimeError(f"{len(faults)} blocks are not what was sent: {faults[0]}")


# ---------------------------------------------------------------- without any of that


def plain_copies(backend: str, reader: Reader) -> Callable[[Sequence[Slot]], Call]:
    """For slots: a call that moves as many bytes the plainest way there is."""
    return memcpy_of(reader) if backend == "shm" else library_of(reader)


def memcpy_of(reader: Reader) -> Callable[[Sequence[Slot]], Call]:
    def of(slots: Sequence[Slot]) -> Call:
        size_bytes = len(slots) * reader.pool.block_bytes
        here, there = (ctypes.create_string_buffer(size_bytes) for _ in range(2))
        for buffer in (here, there):
            ctypes.memset(buffer, 1, size_bytes)
        return lambda: ctypes.memmove(here, there, size_bytes)

    return of


def library_of(reader: Reader) -> Callable[[Sequence[Slot]], Call]:
    """A TransferEngine of its own over the reader's memory, with the pieces block by block."""
    memory, source = reader.memory, reader.source
    engine = import_engine()
    check(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), "initialize")
    check(engine.batch_register_memory([memory.base], [memory.size_bytes]), "register memory")

    def of(slots: Sequence[Slot]) -> Call:
        pieces = reader.pieces(slots)
        here = [memory.base + piece.local_offset for piece in pieces]
        there = [source.base + piece.remote_offset for piece in pieces]
        sizes = [piece.length_bytes for piece in pieces]
        read = engine.batch_transfer_sync_read
        return lambda: check(read(source.endpoint, here, there, sizes), "the library's read")

    return of


if __name__ == "__main__":
    sys.exit(main())
