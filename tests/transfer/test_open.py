"""Choosing a backend, and what the shm one does with a copy that takes too long."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from evctl.core.errors import ConfigError
from evengine.pool.memory import KvMemory
from evengine.ports import Piece, Transfer
from evengine.transfer import open_transfer
from evengine.transfer.shm import ShmTransfer

from .peers import FAILED, fresh_boot, wait_for

CHUNK = 64 << 20


@pytest.mark.parametrize(("wrong", "near"), [("moncake", "mooncake"), ("shmem", "shm")])
def test_an_unknown_backend_is_answered_with_the_nearest_name(wrong: str, near: str) -> None:
    memory = KvMemory("n", boot := fresh_boot(), 1, 4096)
    with pytest.raises(ConfigError) as caught:
        open_transfer(wrong, memory, "n", boot)
    assert caught.value.code == "EV-4201"
    assert near in caught.value.next_step
    with pytest.raises(ValueError):
        open_transfer("shm", memory, "n", "another life")
    memory.close()


@pytest.mark.system
def test_shm_loads_neither_mooncake_nor_torch() -> None:
    code = (
        "import sys, evengine.transfer.shm, evengine.pool.l2;"
        "sys.exit(any(name in sys.modules for name in ('mooncake', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_copy_stops_between_slices_and_is_then_settled() -> None:
    """Settled means that no byte changes after the outcome, which is what is looked for."""
    memories = [KvMemory(name, fresh_boot(), 2, CHUNK) for name in ("from", "to")]
    transfers = [ShmTransfer(one, one.node, one.boot_id) for one in memories]
    here, there = memories
    transfer: Transfer = transfers[0]
    transfer.connect(transfers[1].address)
    here.view[:] = b"\1" * here.size_bytes
    whole = [Piece(0, 0, here.size_bytes)]
    ticket = transfer.write("to", there.boot_id, whole, 0.002)
    outcome = wait_for(transfer, [ticket], 2)[ticket]
    assert (outcome.state, outcome.settled, outcome.reason) == (FAILED, True, "deadline passed")
    copied = bytes(there.view).count(1)
    time.sleep(0.1)
    assert bytes(there.view).count(1) == copied < here.size_bytes
    here.view[:] = b"\2" * here.size_bytes
    running = transfer.write("to", there.boot_id, whole, 10.0)
    while there.view[0] != 2:
        time.sleep(0)
    transfer.disconnect("to", there.boot_id)
    assert wait_for(transfer, [running], 2)[running].settled
    copied = bytes(there.view).count(2)
    time.sleep(0.1)
    assert bytes(there.view).count(2) == copied < here.size_bytes
    for side in transfers:
        side.close()
    for memory in memories:
        memory.close()
