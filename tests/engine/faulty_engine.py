"""An engine with a fault in it: `python -m tests.engine.faulty_engine --fault NAME --config F`.

flip-received, swap-received, flip-restored: what was verified on arrival (from a peer that
prefilled it, or from L2) is damaged before it is used, as a bug or bad memory would. These must
be caught by the suite, not by the engine.
Any transfer.faults.FaultKind by value: a call of its transfer goes wrong that way (--read N or
--write N; the third write where neither is given). These must be caught by the engine.
--blind: it believes whatever a read from a peer brings; for the suite to notice.
--orders FILE: what goes wrong may change at any time and is what the file says (fault_orders).
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

from evengine import agent
from evengine.blockstore import BlockStore
from evengine.config import load_config
from evengine.main import JsonLines, run_engine
from evengine.pool import copier
from evengine.pool.arrivals import Arrivals
from evengine.pool.copier import Checked
from evengine.pool.headers import HEADER_BYTES, Header, write_header
from evengine.pool.l2 import HostPool
from evengine.pool.memory import KvMemory
from evengine.ports import Transfer
from evengine.request import Sequence as Request
from evengine.transfer.faults import ByCall, Fault, FaultKind, Schedule
from evengine.transfer.faulty import FaultyTransfer
from evengine.transfer.protocol import block_checksum
from tests.engine.fault_orders import Ordered, write_notes

FAULTY_WRITE = 2


def damage_received(fault: str) -> None:
    original = BlockStore.publish_received

    def publish_received(
        self: BlockStore, seq: Request, held: int, checksums: dict[int, int]
    ) -> None:
        blocks = [self.pages.memory.block(slot) for slot in seq.slots]
        if fault == "flip-received":
            blocks[len(blocks) // 2][100] ^= 0x40
        elif len(blocks) > 2:
            first = bytes(blocks[0])
            blocks[0][:] = blocks[1]
            blocks[1][:] = first
        original(self, seq, held, checksums)

    BlockStore.publish_received = publish_received  # type: ignore[method-assign]


def damage_restored() -> None:
    original = BlockStore.publish_restored

    def publish_restored(
        self: BlockStore, seq: Request, first: int, checksums: Sequence[int]
    ) -> None:
        if checksums:
            self.pages.memory.block(seq.slots[first])[100] ^= 0x40
        original(self, seq, first, checksums)

    BlockStore.publish_restored = publish_restored  # type: ignore[method-assign]


def believe(
    view: memoryview, offset: int, block_bytes: int, theirs: Header, ours: Header
) -> tuple[int, str]:
    """Whatever came is the block that was asked for."""
    start = offset + HEADER_BYTES
    checksum = block_checksum(view[start : start + block_bytes])
    write_header(view, offset, ours._replace(checksum=checksum))
    return checksum, ""


def believe_all(self: Arrivals, pool: HostPool, checksums: Sequence[int]) -> list[Checked]:
    """The same of a whole batch."""
    for slot, key, checksum in zip(self.slots, self.keys, checksums, strict=True):
        write_header(pool.view, slot * pool.stride, pool.header(slot, key, checksum))
    return [Checked(checksum, "") for checksum in checksums]


def nth_call(arguments: argparse.Namespace) -> Schedule:
    fault = Fault(kind=FaultKind(arguments.fault), polls=20, offset=5)
    if arguments.read is not None:
        return ByCall({arguments.read: fault}, push=False)
    call = FAULTY_WRITE if arguments.write is None else arguments.write
    return ByCall({call: fault}, push=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Run one evctl engine that has a fault.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--fault", default="")
    parser.add_argument("--read", type=int, metavar="N")
    parser.add_argument("--write", type=int, metavar="N")
    parser.add_argument("--orders", type=Path)
    parser.add_argument("--blind", action="store_true")
    arguments = parser.parse_args(argv)
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level="INFO", handlers=[handler])
    config = load_config(arguments.config)
    if arguments.fault.endswith(("-received", "-restored")):
        restored = arguments.fault == "flip-restored"
        damage_restored() if restored else damage_received(arguments.fault)
        run_engine(config)
        return
    if arguments.blind:
        copier.take_over = believe  # type: ignore[assignment]
        Arrivals.take_over = believe_all  # type: ignore[method-assign]
    orders = arguments.orders
    # delays are counted in polls: even an idle engine polls often, which bounds them in seconds
    agent.IDLE_WAIT_S = agent.ACTIVE_WAIT_S
    # whoever asks for problems is told of damaged bytes in L2 before anybody reads them
    HostPool.check_integrity.__defaults__ = (True,)

    def wrap(transfer: Transfer, memory: KvMemory) -> Transfer:
        if orders is not None:
            return FaultyTransfer(transfer, Ordered(orders), memory, write_notes(orders))
        return FaultyTransfer(transfer, nth_call(arguments), memory)

    run_engine(config, wrap)


if __name__ == "__main__":
    main()
