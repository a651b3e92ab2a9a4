"""An engine with a fault in it: `python -m tests.engine.faulty_engine --fault NAME --config F`.

flip-received, swap-received: what was verified on arrival is damaged before it is used, as a
bug or bad memory would. These must be caught by the suite, not by the engine.
"""

from __future__ import annotations

import sys
from pathlib import Path

from evengine.config import load_config
from evengine.inbound import Arrival, Inbound
from evengine.main import run_engine
from evengine.request import Sequence


def damage(fault: str) -> None:
    original = Inbound._publish_received

    def publish_received(self: Inbound, seq: Sequence, arrival: Arrival) -> None:
        blocks = [self._memory.block(slot) for slot in seq.slots]
        if fault == "flip-received":
            blocks[len(blocks) // 2][100] ^= 0x40
        elif len(blocks) > 2:
            first = bytes(blocks[0])
            blocks[0][:] = blocks[1]
            blocks[1][:] = first
        original(self, seq, arrival)

    Inbound._publish_received = publish_received  # type: ignore[method-assign]


if __name__ == "__main__":
    _, flag, fault, _, config = sys.argv
    assert flag == "--fault"
    damage(fault)
    run_engine(load_config(Path(config)))
