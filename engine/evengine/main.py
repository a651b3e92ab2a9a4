"""Composition root of the engine process: `python -m evengine --config FILE`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import secrets
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import torch
import zmq
from tokenizers import Tokenizer

from evctl.core.errors import EvctlError, RefusedError
from evctl.wire.keys import KeyRing, from_z85, load_keypair
from evctl.wire.messages import Hello, PeerInfo
from evctl.wire.sockets import Dialer, Listener
from evengine.agent import Agent
from evengine.blockstore import BlockStore
from evengine.clock import SystemClock
from evengine.config import EngineConfig, load_config
from evengine.loop import Loop
from evengine.models.store import load_model_config
from evengine.models.weights import load_weights
from evengine.outlet import Counters
from evengine.peers import PeerSet
from evengine.pool.l1 import L1Cache
from evengine.pool.l2 import LocalHostPool
from evengine.pool.memory import KvMemory, sweep_stale
from evengine.ports import Transfer
from evengine.runner.executor import TorchExecutor, kv_layout
from evengine.runner.selfcheck import SelfCheck, self_check
from evengine.transfer import open_transfer
from evengine.uplink import Uplink

WrapTransfer = Callable[[Transfer, KvMemory], Transfer]

_log = logging.getLogger("evengine")


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the extras given."""

    _plain = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {"message"}

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
    torch.set_num_threads(config.threads)
    keypair = load_keypair(Path(config.keypair))
    boot_id = secrets.token_hex(16)
    model = load_model_config(Path(config.model))
    weights = load_weights(Path(config.model))
    check = self_check(model, weights, config.block_tokens)
    _require_exact(config, check)
    layout = kv_layout(model, config.block_tokens)
    counters: Counters = Counter()
    clock = SystemClock()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sweep_stale()
    memory = KvMemory(config.node, boot_id, config.l1_blocks, layout.block_bytes)
    with closing(memory):
        opened = open_transfer(
            config.transfer, memory, config.node, boot_id, host=config.advertise_host
        )
        transfer = wrap_transfer(opened, memory)
        l2 = (
            LocalHostPool(boot_id, config.l2_blocks, layout.block_bytes)
            if config.l2_blocks
            else None
        )
        allowed = KeyRing()
        listener = Listener(
            context, keypair, allowed, f"tcp://{config.listen_host}:0", name=config.node
        )
        me = PeerInfo(
            node=config.node,
            boot_id=boot_id,
            endpoint=f"tcp://{config.advertise_host}:{listener.port}",
            public_key=keypair.public,
            transfer=transfer.address,
        )
        control = Dialer(
            context,
            keypair,
            from_z85(config.control_public_key),
            config.control_endpoint,
            name=f"{config.node}->control",
        )
        loops: list[Loop] = []
        peers = PeerSet(
            me=me,
            context=context,
            keypair=keypair,
            allowed=allowed,
            transfer=transfer,
            clock=clock,
            lost=lambda node, boot: loops[0].peer_lost(node, boot),
        )
        uplink = Uplink(control, peers, me, counters)
        l1 = L1Cache(config.l1_blocks)
        store = BlockStore(layout, memory, l1, l2, uplink, counters)
        executor = TorchExecutor(model, weights, memory.view, config.block_tokens)
        tokenizer = Tokenizer.from_file(str(Path(config.model) / "tokenizer.json"))
        loop = Loop(
            me=me,
            executor=executor,
            store=store,
            transfer=transfer,
            clock=clock,
            outlet=uplink,
            counters=counters,
            eos_ids=frozenset(model.eos_ids),
            decode_text=lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
            limits=config.limits,
        )
        loops.append(loop)
        hello = Hello(
            cluster=config.cluster,
            peer=me,
            model=model.name,
            weights_hash=model.weights_hash,
            numerics=check.numerics,
            layout=layout,
            l1_blocks=config.l1_blocks,
            l2_blocks=config.l2_blocks,
            max_running=config.limits.max_running,
            epoch=0,
        )
        agent = Agent(
            hello=hello,
            control=control,
            listener=listener,
            peers=peers,
            uplink=uplink,
            loop=loop,
            store=store,
            clock=clock,
            counters=counters,
        )
        signal.signal(signal.SIGTERM, lambda *_: agent.stop())
        signal.signal(signal.SIGINT, lambda *_: agent.stop())
        _log.info("ready", extra={"node": config.node, "boot_id": boot_id, "pid": os.getpid()})
        try:
            agent.run()
        finally:
            control.close(linger_s=1.0)
            listener.close(linger_s=1.0)
            peers.close()
            transfer.close()
            if l2 is not None:
                l2.close()


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
