"""A rank that is not the lead: computes its heads of every batch that the lead sends."""

from __future__ import annotations

import mmap
import os
import socket
from pathlib import Path

import msgspec
import torch

from evengine.models.store import load_model_config
from evengine.models.weights import load_weights
from evengine.pool.memory import map_region
from evengine.ports import Batch
from evengine.ranks.exchange import Exchange
from evengine.ranks.link import Link, LinkClosedError, RankSetup
from evengine.runner.executor import TorchExecutor
from evengine.runner.selfcheck import self_check
from evengine.runner.share import share_of


def serve(link_descriptor: int, exchange_descriptor: int) -> None:
    """Work until the lead closes the link, however it ends."""
    link = Link(socket.socket(fileno=link_descriptor), wait_s=None)
    try:
        executor = _set_up(link, exchange_descriptor)
        batches = msgspec.msgpack.Decoder(Batch)
        while True:
            executor.compute(batches.decode(link.receive()))
    except LinkClosedError:
        return


def _set_up(link: Link, exchange_descriptor: int) -> TorchExecutor:
    setup = msgspec.msgpack.decode(link.receive(), type=RankSetup)
    torch.set_num_threads(setup.threads)
    directory = Path(setup.model)
    config, weights = load_model_config(directory), load_weights(directory)
    share = share_of(config, setup.rank, setup.ranks)
    shared = mmap.mmap(exchange_descriptor, 0)
    os.close(exchange_descriptor)

    def meet() -> None:
        link.send()
        link.receive()

    exchange = Exchange(memoryview(shared), share, config.n_heads, meet)
    region = map_region(Path(setup.segment), setup.region_offset, setup.region_bytes)
    check = self_check(config, weights, setup.block_tokens, share, exchange.gather)
    link.send(msgspec.msgpack.encode(check))
    return TorchExecutor(config, weights, region, setup.block_tokens, share, exchange.gather)
