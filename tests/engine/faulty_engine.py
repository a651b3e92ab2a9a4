"""An engine with a fault in it: `python -m tests.engine.faulty_engine --fault NAME --config F`.

flip-received, swap-received, flip-restored: what was verified on arrival (from a peer that
prefilled it, or from L2) is damaged before it is used, as a bug or bad memory would. These must
be caught by the suite, not by the engine.
Any transfer.faulty.FaultKind by value: the third write to a peer goes wrong that way. These
must be caught by the engine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence as Seq
from pathlib import Path

from evengine.blockstore import BlockStore
from evengine.config import load_config
from evengine.main import run_engine
from evengine.pool.memory import KvMemory
from evengine.ports import Transfer
from evengine.request import Sequence
from evengine.transfer.faulty import Fault, FaultKind, FaultyTransfer

FAULTY_CALL = 2


def damage_received(fault: str) -> None:
    original = BlockStore.publish_received

    def publish_received(
        self: BlockStore, seq: Sequence, held: int, checksums: dict[int, int]
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

    def publish_restored(self: BlockStore, seq: Sequence, first: int, checksums: Seq[int]) -> None:
        if checksums:
            self.pages.memory.block(seq.slots[first])[100] ^= 0x40
        original(self, seq, first, checksums)

    BlockStore.publish_restored = publish_restored  # type: ignore[method-assign]


def main() -> None:
    _, flag, fault, _, config_path = sys.argv
    assert flag == "--fault"
    config = load_config(Path(config_path))
    if fault.endswith(("-received", "-restored")):
        damage_restored() if fault == "flip-restored" else damage_received(fault)
        run_engine(config)
        return
    schedule = {FAULTY_CALL: Fault(kind=FaultKind(fault), polls=20, offset=5)}

    def wrap(transfer: Transfer, memory: KvMemory) -> Transfer:
        return FaultyTransfer(transfer, schedule, memory)

    run_engine(config, wrap)


if __name__ == "__main__":
    main()
