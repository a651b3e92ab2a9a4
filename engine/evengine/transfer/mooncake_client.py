"""The Mooncake binding, with every return code checked and its transport proven.

Nothing here is trusted with identity, deadlines or retries: that is mooncake.py's.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from evctl.core.errors import EvctlError, NotFoundError
from evctl.wire.messages import TransferAddress
from evengine.pool.memory import KvMemory, address_of
from evengine.ports import Piece
from evengine.transfer.protocol import SELF_TEST_DEADLINE_S

LIMITS = {
    "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": "65535",
    "MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER": "65535",
    "MC_TRANSFER_TIMEOUT": "5",
    "MC_LOG_LEVEL": "ERROR",
}
SCRATCH_BYTES = 8_192
PROBE_BYTES = 64
TCP_ESTABLISHED, TCP_LISTEN = "01", "0A"


def set_environment(protocol: str) -> None:
    """What the library reads at start. MC_FORCE_TCP alone chooses TCP; its argument does not.

    Limits already set by the operator stay.
    """
    for name, value in LIMITS.items():
        os.environ.setdefault(name, value)
    if protocol == "tcp":
        os.environ["MC_FORCE_TCP"] = "1"


class Batch:
    """Pieces that run, by the library's ids; failed: one that does not any more, or never did."""

    def __init__(self, running: list[int], *, failed: bool) -> None:
        self.running = running
        self.failed = failed


class MooncakeClient:
    """One TransferEngine over this node's KV memory, proven to work by a copy to itself.

    Raises NotFoundError EV-4202 without the package, EvctlError EV-4203 if any step of the
    start fails or if another transport than `protocol` was taken. All calls of a transfer
    release the GIL; so do initialize and the batch form of registration.
    """

    def __init__(self, memory: KvMemory, host: str, protocol: str) -> None:
        self._memory = memory
        self._hold = memory.view[:]  # keeps it mapped for as long as the library may use it
        self._engine = _import_engine()
        self._scratch = mmap.mmap(-1, SCRATCH_BYTES)
        self.scratch_base = address_of(self._scratch)
        check(self._engine.initialize(host, "P2PHANDSHAKE", protocol, ""), "initialize")
        self.endpoint = f"{host}:{self._engine.get_rpc_port()}"
        self._regions = [memory.base, self.scratch_base]
        sizes = [memory.size_bytes, SCRATCH_BYTES]
        check(self._engine.batch_register_memory(self._regions, sizes), "register memory")
        self._batches: dict[int, Batch] = {}
        self._next_batch = count(1)
        self._test_itself(protocol)

    def probe(self, endpoint: str) -> int:
        """0 if something answers. Up to a minute for a mute peer, but holds up nobody else."""
        return int(self._engine.send_probe(endpoint))

    def submit(self, endpoint: str, base: int, pieces: Sequence[Piece], push: bool) -> int:
        """Start a batch; returns its id, 0 if nothing of it was taken.

        Each piece is a batch of its own to the library, which of a longer one tells the state
        of the first piece only, and never frees it. The first to an endpoint opens a session
        under the library's one lock: with a mute peer it holds up every other submission for a
        minute, so probe() comes first.
        """
        start = (
            self._engine.batch_transfer_async_write
            if push
            else self._engine.batch_transfer_async_read
        )
        taken: list[int] = []
        for piece in pieces:
            local, remote = self._memory.base + piece.local_offset, base + piece.remote_offset
            taken.append(int(start(endpoint, [local], [remote], [piece.length_bytes])))
            if taken[-1] <= 0:
                taken.pop()
                break
        if not taken:
            return 0
        number = next(self._next_batch)
        self._batches[number] = Batch(taken, failed=len(taken) < len(pieces))
        return number

    def status(self, batch: int) -> int:
        """1 all done, 0 some running, negative: all ended, and not all well. A batch that has
        ended is never asked for again."""
        known = self._batches[batch]
        while known.running:
            found = self._ask(known.running[-1])
            if found == 0:
                return 0
            known.running.pop()
            known.failed = known.failed or found < 0
        del self._batches[batch]
        return -1 if known.failed else 1

    def warm(self, peer: TransferAddress, deadline_s: float) -> bool:
        """Open the session with a small read into scratch memory; waits `deadline_s`."""
        length_bytes = min(PROBE_BYTES, peer.size_bytes)
        return self._read_scratch(peer.endpoint, peer.base, length_bytes, deadline_s)

    def close(self) -> None:
        """Stop serving the memory. Tearing down holds the GIL for about a second."""
        self._engine.batch_unregister_memory(self._regions)
        self._engine = None
        self._hold.release()

    def _ask(self, piece: int) -> int:
        """1 done, 0 running, negative failed."""
        return int(self._engine.transfer_check_status(piece))

    def _read_scratch(self, endpoint: str, remote: int, length: int, deadline_s: float) -> bool:
        read = self._engine.batch_transfer_async_read
        batch = int(read(endpoint, [self.scratch_base], [remote], [length]))
        end_s = time.monotonic() + deadline_s
        while batch and time.monotonic() < end_s:
            status = self._ask(batch)
            if status:
                return status == 1
            time.sleep(0.001)
        return False

    def _test_itself(self, protocol: str) -> None:
        """Read one half of the scratch memory into the other through the transport."""
        half = SCRATCH_BYTES // 2
        pattern = os.urandom(half)
        self._scratch[half:] = pattern
        source = self.scratch_base + half
        moved = self._read_scratch(self.endpoint, source, half, SELF_TEST_DEADLINE_S)
        if not moved or self._scratch[:half] != pattern:
            raise start_error("the self-test transfer did not move its bytes")
        taken = "tcp" if _talks_tcp_to_itself() else "another transport"
        if (taken == "tcp") != (protocol == "tcp"):
            raise start_error(f"{protocol} was asked for, but the self-test went by {taken}")


def check(code: int, step: str) -> None:
    if code != 0:
        raise start_error(f"{step} returned {code}")


def start_error(why: str) -> EvctlError:
    return EvctlError(
        what="cannot start the mooncake transfer",
        why=why,
        next_step="look at the library's lines on stderr, or set transfer: shm on one machine",
        code="EV-4203",
    )


def _import_engine() -> Any:
    try:
        from mooncake.engine import TransferEngine
    except ImportError as error:
        raise NotFoundError(
            what="the mooncake transfer is not installed",
            why=str(error),
            next_step="scripts/setup, which also installs libibverbs1, libnuma1 and libcurl4",
            code="EV-4202",
        ) from error
    return TransferEngine()


def _talks_tcp_to_itself() -> bool:
    """Whether a connection of this process leads to a listening port of this process."""
    own = _own_sockets()
    listening, remote_ports = set(), set()
    for state, local_port, remote_port, inode in _tcp_table():
        if inode in own and state == TCP_LISTEN:
            listening.add(local_port)
        if inode in own and state == TCP_ESTABLISHED:
            remote_ports.add(remote_port)
    return bool(listening & remote_ports)


def _tcp_table() -> Iterator[tuple[str, str, str, str]]:
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            yield fields[3], fields[1].split(":")[1], fields[2].split(":")[1], fields[9]


def _own_sockets() -> set[str]:
    """Inodes of this process's sockets."""
    inodes = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = str(Path("/proc/self/fd", descriptor).readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    return inodes
