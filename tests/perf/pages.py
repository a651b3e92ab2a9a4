"""Time to put a block together from the ranks' parts and to take it apart, per 64 KiB.

Run from the root of the checkout: python -m tests.perf.pages
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from evctl.core.kv import KvLayout
from evengine.pool.memory import SHM_DIRECTORY, KvMemory
from evengine.pool.ranked import open_pages

SHAPES = {
    "random-4l256": (KvLayout(4, 2, 128, "float32", 16), False),
    "random-4l256-latent": (KvLayout(4, 1, 80, "float32", 16), True),
}
BLOCKS = 512
ROUNDS = 3
REFERENCE_BYTES = 64 << 10


def median_us(action: Callable[[int], object]) -> float:
    """Of one call, slots in an order that no cache likes."""
    times = []
    for _ in range(ROUNDS):
        for i in range(BLOCKS):
            started_s = time.perf_counter()
            action(i * 211 % BLOCKS)
            times.append(time.perf_counter() - started_s)
    return sorted(times)[len(times) // 2] * 1e6


def main() -> None:
    print("us per 64 KiB of canonical bytes: canonical, checksum, copy_out, write")
    with tempfile.TemporaryDirectory(prefix="perf-", dir=SHM_DIRECTORY) as directory:
        for name, (layout, replicated) in SHAPES.items():
            for ranks in (1, 2, 4):
                measure(name, layout, ranks, replicated, Path(directory))


def measure(name: str, layout: KvLayout, ranks: int, replicated: bool, folder: Path) -> None:
    memory = KvMemory(
        name,
        f"r{ranks}",
        BLOCKS,
        layout.block_bytes,
        directory=folder,
        ranks=ranks,
        replicated=replicated,
    )
    pages = open_pages(layout, memory)
    data = memoryview(bytearray(layout.block_bytes))
    actions: list[Callable[[int], object]] = [
        pages.canonical,
        pages.checksum,
        lambda slot: pages.copy_out(slot, data),
        lambda slot: pages.write(slot, data),
    ]
    scale = REFERENCE_BYTES / layout.block_bytes
    figures = "".join(f"{median_us(action) * scale:8.1f}" for action in actions)
    print(f"{name:22} {ranks} ranks {figures}")
    memory.close()


if __name__ == "__main__":
    main()
