"""CPU of an idle engine, in per cent of a core: `python -m tests.perf.idle [SECONDS [BACKEND]]`.

Mooncake listens on all interfaces: measure it in a namespace of its own, `unshare -n sh -c
'ip link set lo up && python -m tests.perf.idle 30 mooncake'`.

Two engines that know each other and a control plane, nothing to do. CPU time of all threads,
read from the operating system over the interval.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import psutil

from evengine.models.store import ensure_model
from tests.engine.driver import Driver


def idle_percent(driver: Driver, seconds: float) -> dict[str, float]:
    """Share of a core that each engine used over `seconds` of doing nothing."""
    for name in driver.nodes:
        driver.quiet(name)
    processes = {name: psutil.Process(node.pid) for name, node in driver.nodes.items()}
    before = {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        driver.pump(0.5)
    elapsed_s = time.monotonic() - started
    return {
        name: 100 * (sum(process.cpu_times()[:2]) - before[name]) / elapsed_s
        for name, process in processes.items()
    }


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    backend = sys.argv[2] if len(sys.argv) > 2 else "shm"
    model = ensure_model("random-4l256")
    with (
        tempfile.TemporaryDirectory() as folder,
        Driver(Path(folder), model, transfer=backend, l1_blocks=64) as driver,
    ):
        driver.settle()
        for name, percent in idle_percent(driver, seconds).items():
            print(f"{backend:10} {name}: {percent:.2f} % of a core over {seconds:.0f} s")


if __name__ == "__main__":
    main()
