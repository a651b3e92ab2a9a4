"""Composition root of the engine process: `python -m evengine --config FILE`."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import platform
import secrets
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import msgspec
import torch
import zmq
from tokenizers import Tokenizer

from evctl import __version__
from evctl.core.errors import EvctlError, RefusedError
from evctl.core.kv import KvLayout
from evctl.policy.eviction import make_order
from evctl.wire.channel import CONTROL_LIMITS
from evctl.wire.keys import KeyRing, from_z85, load_keypair
from evctl.wire.messages import Hello, PeerInfo
from evctl.wire.sockets import Dialer, Listener
from evengine.agent import Agent
from evengine.blockstore import BlockStore
from evengine.clock import SystemClock
from evengine.config import EngineConfig, load_config
from evengine.loop import Loop
from evengine.models.config import ModelConfig
from evengine.models.store import load_model_config
from evengine.models.tokenizer import load_tokenizer
from evengine.models.weights import load_weights
from evengine.outlet import new_counters
from evengine.peers import ANNOUNCED_WITHIN_S, PeerSet
from evengine.pool.copier import Copier
from evengine.pool.headers import slot_stride
from evengine.pool.l1 import L1Cache
from evengine.pool.l2 import HostPool
from evengine.pool.memory import KvMemory, sweep_stale
from evengine.pool.ranked import open_pages
from evengine.ports import Executor, Transfer
from evengine.ranks.processes import RankProcesses
from evengine.runner.executor import TorchExecutor, kv_layout
from evengine.runner.paced import PacedExecutor
from evengine.runner.ranked import open_ranked
from evengine.runner.selfcheck import SelfCheck, self_check
from evengine.runner.share import share_of
from evengine.transfer import open_transfer
from evengine.uplink import Uplink
from evengine.wake import Wake

WrapTransfer = Callable[[Transfer, KvMemory], Transfer]

SWITCH_S = 0.0005
"""How long one thread may keep the interpreter while another waits: the model's thread, the copier
and the engine's own take turns in small steps. Python's default is ten times that."""

LINGER_S = 1.0
"""How long a last message may take to leave when the engine stops."""

_log = logging.getLogger("evengine")


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the extras given."""

    _plain = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {
        "message",
        "color_message",  # uvicorn's message once more, with escapes for a terminal
    }

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time_s": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({k: v for k, v in record.__dict__.items() if k not in self._plain})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=repr)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="evengine", description="Run one evctl engine.")
    parser.add_argument("--config", required=True, type=Path, help="JSON, see evengine.config")
    arguments = parser.parse_args(argv)
    try:
        config = load_config(arguments.config)
        _log_to_stderr(config)
        run_engine(config)
    except EvctlError as error:
        print(error.render(), file=sys.stderr)
        return error.exit_code
    return 0


def run_engine(
    config: EngineConfig, wrap_transfer: WrapTransfer = lambda transfer, _: transfer
) -> None:
    """Start an engine and serve until Stop or SIGTERM. wrap_transfer: for fault injection."""
    if not config.prefix_cache:  # nothing is reused: not from L2 either
        config = msgspec.structs.replace(config, l2_blocks=0)
    torch.set_num_threads(config.threads)
    sys.setswitchinterval(SWITCH_S)
    share_of(load_model_config(Path(config.model)), 0, config.ranks)  # refuses what cannot be
    sweep_stale()
    with ExitStack() as resources:
        ranks = RankProcesses(config.node, config.ranks)  # first: they start up while we load
        resources.callback(ranks.close)
        loaded = _load_model(config)
        agent = _assemble(config, loaded, ranks, wrap_transfer, resources)
        signal.signal(signal.SIGTERM, lambda *_: agent.stop())
        signal.signal(signal.SIGINT, lambda *_: agent.stop())
        ranks.watch(agent.stop)
        gc.collect()
        gc.freeze()  # what lives as long as the engine is not looked at again and again
        _log.info("ready", extra={"node": config.node, "pid": os.getpid(), "ranks": ranks.pids})
        agent.run()
        ranks.raise_failure()


class LoadedModel(NamedTuple):
    config: ModelConfig
    weights: dict[str, torch.Tensor]
    layout: KvLayout
    check: SelfCheck
    tokenizer: Tokenizer


def _load_model(config: EngineConfig) -> LoadedModel:
    directory = Path(config.model)
    model = load_model_config(directory)
    weights = load_weights(directory)
    check = self_check(model, weights, config.block_tokens)
    _require_exact(config, check)
    layout = kv_layout(model, config.block_tokens)
    return LoadedModel(model, weights, layout, check, load_tokenizer(directory))


def _open_executor(
    config: EngineConfig, loaded: LoadedModel, memory: KvMemory, ranks: RankProcesses
) -> tuple[Executor, str]:
    """The executor, and the name of its numerics."""
    model, weights = loaded.config, loaded.weights
    if config.ranks == 1:
        own = TorchExecutor(model, weights, memory.region(0), config.block_tokens)
        return _paced(config, own), loaded.check.numerics
    executor, check = open_ranked(
        model, weights, Path(config.model), memory, config.block_tokens, loaded.check, ranks
    )
    _require_exact(config, check)
    return _paced(config, executor), check.numerics


def _paced(config: EngineConfig, executor: Executor) -> Executor:
    """Each node has noise of its own, the same at every start."""
    if config.pace is None:
        return executor
    return PacedExecutor(executor, config.pace, crc32(config.node.encode()))


def _assemble(
    config: EngineConfig,
    loaded: LoadedModel,
    ranks: RankProcesses,
    wrap_transfer: WrapTransfer,
    resources: ExitStack,
) -> Agent:
    """Open memory, transfer and sockets, and wire the parts together. `resources` closes them
    in reverse: sockets first, the memory that transfers write to last."""
    boot_id = secrets.token_hex(16)
    keypair = load_keypair(Path(config.keypair))
    block_bytes = loaded.layout.block_bytes
    counters = new_counters()
    clock = SystemClock()
    wake = Wake()
    resources.callback(wake.close)
    pool_bytes = config.l2_blocks * slot_stride(block_bytes)
    memory = KvMemory(
        config.node,
        boot_id,
        config.l1_blocks,
        block_bytes,
        pool_bytes=pool_bytes,
        ranks=config.ranks,
        replicated=loaded.config.attention == "latent",
    )
    resources.callback(memory.close)
    executor, numerics = _open_executor(config, loaded, memory, ranks)
    pages = open_pages(loaded.layout, memory)
    pool = copier = None
    if config.l2_blocks:
        pool = HostPool(
            boot_id,
            memory.pool(),
            config.l2_blocks,
            block_bytes,
            offset=memory.pool_offset,
            order=make_order(config.eviction, config.l2_blocks),
        )
        copier = Copier(pages, pool, wake)
        resources.callback(copier.close)
    opened = open_transfer(
        config.transfer, memory, config.node, boot_id, host=config.advertise_host
    )
    resources.callback(opened.close)
    opened.when_ended(wake.set)
    transfer = wrap_transfer(opened, memory)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    allowed = KeyRing()
    listener = Listener(
        context, keypair, allowed, f"tcp://{config.listen_host}:0", name=config.node
    )
    listener.patience_s = ANNOUNCED_WITHIN_S
    resources.callback(listener.close, LINGER_S)
    control = Dialer(
        context,
        keypair,
        from_z85(config.control_public_key),
        config.control_endpoint,
        limits=CONTROL_LIMITS,
        name=f"{config.node}->control",
    )
    resources.callback(control.close, LINGER_S)
    me = PeerInfo(
        node=config.node,
        boot_id=boot_id,
        endpoint=f"tcp://{config.advertise_host}:{listener.port}",
        public_key=keypair.public,
        transfer=msgspec.structs.replace(
            transfer.address, pool_offset=memory.pool_offset, pool_blocks=config.l2_blocks
        ),
    )
    peers = PeerSet(
        me=me, context=context, keypair=keypair, allowed=allowed, transfer=transfer, clock=clock
    )
    resources.callback(peers.close)
    uplink = Uplink(control, peers, me, counters)
    store = BlockStore(
        pages,
        L1Cache(config.l1_blocks, reuse=config.prefix_cache),
        pool,
        copier,
        uplink,
        clock,
        counters,
        config.limits.keep,
    )
    loop = Loop(
        me=me,
        executor=executor,
        store=store,
        copier=copier,
        transfer=transfer,
        clock=clock,
        wake=wake,
        outlet=uplink,
        counters=counters,
        eos_ids=frozenset(loaded.config.eos_ids),
        decode_text=lambda ids: loaded.tokenizer.decode(ids, skip_special_tokens=False),
        limits=config.limits,
    )
    resources.callback(loop.close)
    return Agent(
        hello=_hello(config, loaded, numerics, me),
        control=control,
        listener=listener,
        peers=peers,
        uplink=uplink,
        engine=loop,
        store=store,
        clock=clock,
        wake=wake,
        counters=counters,
    )


def _hello(config: EngineConfig, loaded: LoadedModel, numerics: str, me: PeerInfo) -> Hello:
    return Hello(
        cluster=config.cluster,
        peer=me,
        model=loaded.config.name,
        weights_hash=loaded.config.weights_hash,
        numerics=numerics,
        layout=loaded.layout,
        l1_blocks=config.l1_blocks,
        l2_blocks=config.l2_blocks,
        max_running=config.limits.max_running,
        epoch=0,
        hardware=_hardware(config),
        engine=f"evengine {__version__}, torch {torch.__version__}",
    )


def _hardware(config: EngineConfig) -> str:
    """What iteration times depend on beside model and engine: a pace stands for other hardware."""
    told = f"{processor()}, {torch.get_num_threads()} threads a rank"
    pace = config.pace
    return told if pace is None else f"{told}, paced {msgspec.json.encode(pace).decode()}"


def processor(path: Path = Path("/proc/cpuinfo")) -> str:
    """The kind of CPU, as the system names it."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _log_to_stderr(config: EngineConfig) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=config.log_level, handlers=[handler], force=True)


def _require_exact(config: EngineConfig, check: SelfCheck) -> None:
    """Say what the self-check found; refuse to go on if exactness was asked for and is not."""
    if check.exact:
        _log.info("self-check passed", extra={"numerics": check.numerics, "why": check.detail})
        return
    if not config.require_exact:
        _log.warning("inexact numerics", extra={"numerics": check.numerics, "why": check.detail})
        return
    raise RefusedError(
        what=f"engine {config.node} does not start",
        why=f"this CPU's results depend on the batch: {check.detail}",
        next_step='set "require_exact": false to serve without bit-equal output',
        code="EV-2010",
    )
