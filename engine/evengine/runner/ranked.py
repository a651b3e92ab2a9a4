"""An executor of several processes: each keeps and attends some heads of every sequence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

from evengine.models.config import ModelConfig
from evengine.pool.memory import KvMemory
from evengine.ports import Batch, Sampled
from evengine.ranks.exchange import Exchange, exchange_bytes
from evengine.ranks.link import RankSetup
from evengine.ranks.processes import RankProcesses
from evengine.runner.executor import TorchExecutor
from evengine.runner.selfcheck import SelfCheck, self_check
from evengine.runner.share import share_of


class RankedExecutor:
    """ports.Executor over the ranks of a node. `run` computes rank 0's part in the calling
    thread, whichever that is, one call at a time; when a rank is lost it raises EV-2012, then
    and ever after.

    The last meeting of a batch comes after its KV was written by every rank, so the KV of a
    batch that has run is whole.
    """

    def __init__(self, own: TorchExecutor, ranks: RankProcesses) -> None:
        self.layout = own.layout
        self.context_tokens = own.context_tokens
        self.vocab_size = own.vocab_size
        self._own = own
        self._ranks = ranks
        self._in_step = True
        self._encoder = msgspec.msgpack.Encoder()

    def run(self, batch: Batch) -> Sampled:
        if not self._in_step:
            self._ranks.raise_failure()
            raise RuntimeError("an earlier batch failed halfway: the ranks are out of step")
        self._in_step = False
        # Others need no draws: rank 0 chooses.
        told = self._encoder.encode(msgspec.structs.replace(batch, draws=()))
        self._ranks.tell(lambda _: told)
        sampled = self._own.run(batch)
        self._in_step = True
        return sampled


def open_ranked(
    config: ModelConfig,
    weights: dict[str, torch.Tensor],
    directory: Path,
    memory: KvMemory,
    block_tokens: int,
    alone: SelfCheck,
    ranks: RankProcesses,
) -> tuple[RankedExecutor, SelfCheck]:
    """Set up every rank and check them all against `alone`, what one rank found by itself.
    directory: of the model. Raises EV-2012 when a rank does not get ready."""
    shared = ranks.share_memory(exchange_bytes(config))
    threads = torch.get_num_threads()

    def setup(rank: int) -> bytes:
        return msgspec.msgpack.encode(
            RankSetup(
                model=str(directory),
                block_tokens=block_tokens,
                threads=threads,
                rank=rank,
                ranks=ranks.ranks,
                segment=str(memory.path),
                region_offset=rank * memory.region_bytes,
                region_bytes=memory.region(rank).nbytes,
            )
        )

    ranks.tell(setup)
    share = share_of(config, 0, ranks.ranks)
    gather = Exchange(shared, share, config.n_heads, ranks.meet).gather
    found = [self_check(config, weights, block_tokens, share, gather)]
    found += [msgspec.msgpack.decode(answer, type=SelfCheck) for answer in ranks.answers()]
    own = TorchExecutor(config, weights, memory.region(0), block_tokens, share, gather)
    return RankedExecutor(own, ranks), agreed(alone, found)


def agreed(alone: SelfCheck, found: Sequence[SelfCheck]) -> SelfCheck:
    """What holds for a node whose ranks found this, in their order."""
    for rank, check in enumerate(found):
        if check.numerics != alone.numerics:
            bits = check.numerics.rpartition(":")[2]
            return SelfCheck(
                exact=False,
                numerics=f"inexact/{len(found)}-ranks:{bits}",
                detail=f"rank {rank} of {len(found)} computes other bits than one rank alone "
                f"({check.detail})",
            )
    return msgspec.structs.replace(alone, detail=f"{alone.detail}; {len(found)} ranks agree")
