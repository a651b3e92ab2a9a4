"""Speed of both transfer backends: `python -m tests.perf.transfer_speed`, under `unshare -n`.

Two processes on one machine, 256 blocks of 64 KiB, from the call until poll() returns the
outcome, polled every 0.1 ms. Needs `ip link set lo up` in the namespace. Prints milliseconds.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable

from evengine.pool.memory import KvMemory
from evengine.ports import Piece, Transfer, TransferState
from evengine.transfer import open_transfer
from tests.transfer.peers import BLOCK_BYTES, Peer, fresh_boot

KIB_64 = 64 << 10
COUNT = 256
REGION_BYTES = 2 * COUNT * KIB_64
REPEATS = 20


def median_ms(call: Callable[[], object]) -> float:
    """Of REPEATS calls after a first one that pays for page faults and the session."""
    call()
    taken = []
    for _ in range(REPEATS):
        start_s = time.perf_counter()
        call()
        taken.append((time.perf_counter() - start_s) * 1e3)
    return statistics.median(taken)


def move(transfer: Transfer, peer: Peer, pieces: list[Piece], push: bool) -> None:
    start = transfer.write if push else transfer.read
    start(peer.node, peer.boot_id, pieces, 30.0)
    while not (outcomes := transfer.poll()):
        time.sleep(0.0001)
    assert outcomes[0].state is TransferState.DONE, outcomes


def measure(backend: str) -> None:
    memory = KvMemory("here", fresh_boot(), REGION_BYTES // KIB_64, KIB_64)
    transfer = open_transfer(backend, memory, "here", memory.boot_id)
    peer = Peer(backend, "there", REGION_BYTES // BLOCK_BYTES)
    transfer.connect(peer.address)
    shapes = {"scattered": (2, COUNT), "contiguous": (1, COUNT), "one block": (1, 1)}
    for shape, (step, count) in shapes.items():
        pieces = [Piece(step * i * KIB_64, step * i * KIB_64, KIB_64) for i in range(count)]
        for push in (True, False):
            taken_ms = median_ms(lambda p=pieces, w=push: move(transfer, peer, p, w))  # type: ignore[misc]
            print(f"{backend:9} {shape:11} {'write' if push else 'read':6} {taken_ms:7.2f} ms")
    peer.kill()
    transfer.close()
    memory.close()


def main() -> None:
    size = COUNT * KIB_64
    source, target = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
    copied_ms = median_ms(lambda: ctypes.memmove(target, source, size))
    print(f"memcpy of {size >> 20} MiB           {copied_ms:7.2f} ms")
    for backend in ("shm", "mooncake"):
        measure(backend)


if __name__ == "__main__":
    main()
