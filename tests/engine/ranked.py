"""What tests of ranks need: a model whose KV heads divide over four, and a view of processes."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from evengine.models.registry import RandomModel, random_config, seed_of
from evengine.models.store import ensure, load_model_config
from evengine.models.weights import load_weights
from evengine.pool.memory import KvMemory
from evengine.pool.ranked import open_pages
from evengine.ranks.processes import RankProcesses
from evengine.runner.executor import TorchExecutor, kv_layout
from evengine.runner.ranked import RankedExecutor, open_ranked
from evengine.runner.selfcheck import self_check

FOUR_HEADS = "random-2l256-4kv"


def four_heads_model() -> Path:
    """Two layers, eight query heads over four KV heads; made once and cached."""
    config = random_config(FOUR_HEADS, 2, 256, n_heads=8, n_kv_heads=4)
    return ensure(RandomModel(config, seed_of(FOUR_HEADS)))


def ranks_of(pid: int) -> list[psutil.Process]:
    """The rank processes of an engine, by rank."""
    found = [p for p in psutil.Process(pid).children() if "evengine.rank" in p.cmdline()]
    return sorted(found, key=rank_of)


def rank_of(process: psutil.Process) -> int:
    words = process.cmdline()
    return int(words[words.index("--rank") + 1])


def sockets_of(process: psutil.Process) -> int:
    """How many descriptors of a process are sockets."""
    links = [entry.readlink() for entry in Path(f"/proc/{process.pid}/fd").iterdir()]
    return sum(str(link).startswith("socket:") for link in links)


def all_gone(processes: list[psutil.Process], timeout_s: float) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=timeout_s)
    return not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


class Ranked:
    """An executor of `ranks`, led by this process, without an engine around it."""

    def __init__(self, directory: Path, ranks: int, wait_s: float) -> None:
        config, weights = load_model_config(directory), load_weights(directory)
        self.layout = kv_layout(config, 16)
        self.memory = KvMemory(
            "test",
            os.urandom(8).hex(),
            64,
            self.layout.block_bytes,
            ranks=ranks,
            replicated=config.attention == "latent",
        )
        self.pages = open_pages(self.layout, self.memory)
        self.processes = RankProcesses("test", ranks, wait_s)
        alone = self_check(config, weights, 16)
        self.executor: RankedExecutor | TorchExecutor
        if ranks == 1:
            self.executor = TorchExecutor(config, weights, self.memory.region(0), 16)
            self.check = alone
        else:
            self.executor, self.check = open_ranked(
                config, weights, directory, self.memory, 16, alone, self.processes
            )

    def close(self) -> None:
        self.processes.close()
        self.memory.close()
