"""A stand-in for the control plane: starts engine processes and speaks the wire with them."""

from __future__ import annotations

import itertools
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq

from evctl.core.blocks import KvNamespace, block_keys, root_key
from evctl.core.events import EngineFact
from evctl.core.kv import FetchPiece
from evctl.core.sampling import SamplingParams, TokenLogprob
from evctl.wire.keys import KeyPair, KeyRing, generate_keypair, save_keypair, to_z85
from evctl.wire.messages import (
    AnyMessage,
    CancelRequest,
    Facts,
    GetInventory,
    Heartbeat,
    Hello,
    Inspect,
    Inspection,
    Inventory,
    InventoryBlock,
    Peers,
    Refused,
    StartRequest,
    Tokens,
    Welcome,
)
from evctl.wire.sockets import Listener
from evengine.config import EngineConfig

F = TypeVar("F")
CLUSTER = "test"
START_TIMEOUT_S = 90.0


class Result:
    """What came back for one request."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish: str | None = None
        self.error = ""
        self.cached_tokens = 0
        self.gaps = 0
        self.repeats = 0
        self.shared_id = False
        """Two requests run under this id, so their outputs may differ."""

    def add(self, message: Tokens) -> None:
        fresh = len(self.tokens) - message.start
        if fresh < 0:
            self.gaps += 1
            return
        if fresh and message.token_ids:
            self.repeats += 1
            same = self.tokens[message.start :] == list(message.token_ids[:fresh])
            assert same or self.shared_id, "a repeated token is another token"
        self.tokens.extend(message.token_ids[fresh:])
        self.logprobs.extend(message.logprobs[fresh:])
        self.cached_tokens = message.cached_tokens
        self.error = message.error or self.error
        self.finish = message.finish or self.finish


class Node:
    """One engine process."""

    def __init__(self, name: str, keypair: KeyPair, config_path: Path, entry: list[str]) -> None:
        self.name = name
        self.keypair = keypair
        self.config_path = config_path
        self.entry = entry
        self.process: subprocess.Popen[bytes] | None = None
        self.hello: Hello | None = None
        self.connection = b""
        self.heartbeat: Heartbeat | None = None
        self.log_path = config_path.with_suffix(".log")

    def spawn(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.entry, "--config", str(self.config_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def log(self) -> str:
        return self.log_path.read_text()[-4000:] if self.log_path.exists() else ""


class Driver:
    """Engines over one model, and everything they said."""

    def __init__(
        self,
        folder: Path,
        model: Path,
        names: Sequence[str] = ("a", "b"),
        *,
        entry: Sequence[str] = ("-m", "evengine"),
        entries: dict[str, Sequence[str]] | None = None,
        **options: object,
    ) -> None:
        self.kv_secret = secrets.token_bytes(32)
        self.epoch = 1
        self.results: dict[str, Result] = {}
        self.facts: list[tuple[str, EngineFact]] = []
        self.refused: list[Refused] = []
        self._answers: dict[int, AnyMessage] = {}
        self._inventories: dict[int, list[InventoryBlock]] = {}
        self._tickets = itertools.count(1)
        self._names = itertools.count(1)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        keypair = generate_keypair()
        self.ring = KeyRing()
        self._listener = Listener(self._context, keypair, self.ring, name="control")
        self._poller = zmq.Poller()
        for socket in self._listener.pollables:
            self._poller.register(socket, zmq.POLLIN)
        self.nodes: dict[str, Node] = {}
        for name in names:
            node_keys = generate_keypair()
            save_keypair(node_keys, folder / f"{name}.key")
            self.ring.add(node_keys.public)
            config = msgspec.convert(
                {
                    "cluster": CLUSTER,
                    "node": name,
                    "control_endpoint": self._listener.endpoint,
                    "control_public_key": to_z85(keypair.public),
                    "keypair": str(folder / f"{name}.key"),
                    "model": str(model),
                    **options,
                },
                EngineConfig,
            )
            path = folder / f"{name}.json"
            path.write_bytes(msgspec.json.encode(config))
            chosen = (entries or {}).get(name, entry)
            self.nodes[name] = Node(name, node_keys, path, list(chosen))

    # ------------------------------------------------------------ processes

    def start(self) -> Driver:
        for node in self.nodes.values():
            node.spawn()
        self.until(lambda: all(n.hello for n in self.nodes.values()), START_TIMEOUT_S, "Hello")
        self.announce()
        return self

    def restart(self, name: str) -> None:
        node = self.nodes[name]
        node.hello = None
        node.spawn()
        self.until(lambda: node.hello is not None, START_TIMEOUT_S, "Hello")
        self.announce()

    def announce(self, without: Iterable[str] = ()) -> None:
        """Tell every engine who its peers are, and wait until they know each other."""
        gone = set(without)
        peers = tuple(n.hello.peer for n in self.nodes.values() if n.hello and n.name not in gone)
        for node in self.nodes.values():
            if node.hello and node.name not in gone:
                self.send(node.name, Peers(self.epoch, peers))

    def settle(self) -> None:
        """Wait until every engine has heard its peers: pushes work from the first request."""
        names = list(self.nodes)
        for one, other in itertools.permutations(names, 2):

            def heard(one: str = one, other: str = other) -> bool:
                request_id = self.submit([1, 2, 3], prefill=one, decode=other, max_tokens=2)
                self.wait([request_id])
                return self.handed_over(request_id)

            self.until(heard, 20.0, f"{one} to reach {other}")

    def handed_over(self, request_id: str) -> bool:
        self.until(
            lambda: any(
                getattr(f, "request_id", "") == request_id
                and type(f).__name__ in ("TransferDone", "TransferFailed", "RequestDone")
                for _, f in self.facts
            ),
            5.0,
            "the facts of a request",
        )
        return any(
            getattr(f, "request_id", "") == request_id and type(f).__name__ == "TransferDone"
            for _, f in self.facts
        )

    def stop(self) -> None:
        for node in self.nodes.values():
            if node.process is None:
                continue
            if node.process.poll() is None:
                node.process.terminate()
            try:
                node.process.wait(10)
            except subprocess.TimeoutExpired:
                node.process.kill()
                node.process.wait(10)
        self._listener.close()
        self._context.destroy(linger=0)

    def __enter__(self) -> Driver:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ------------------------------------------------------------ requests

    def submit(
        self,
        prompt: Sequence[int],
        *,
        prefill: str = "a",
        decode: str | None = None,
        request_id: str | None = None,
        tenant: str = "t",
        fetch: Sequence[FetchPiece] = (),
        **sampling: object,
    ) -> str:
        hello = self.nodes[prefill].hello
        assert hello is not None
        request_id = request_id or f"r{next(self._names)}"
        root = root_key(self.kv_secret, KvNamespace(tenant, hello.weights_hash))
        keys = block_keys(self.kv_secret, root, prompt, hello.layout.block_tokens)
        params = SamplingParams(**{"max_tokens": 8, "ignore_eos": True, **sampling})
        self.results.setdefault(request_id, Result(request_id))
        self.send(
            prefill,
            StartRequest(
                request_id=request_id,
                tenant=tenant,
                branch="",
                generation=0,
                epoch=self.epoch,
                prompt=tuple(prompt),
                root_key=root,
                block_keys=b"".join(keys),
                sampling=params,
                prefill_node=prefill,
                decode_node=decode or prefill,
                fetch=tuple(fetch),
            ),
        )
        return request_id

    def cancel(self, request_id: str, *names: str) -> None:
        for name in names or self.nodes:
            self.send(name, CancelRequest(request_id))

    def wait(self, request_ids: Iterable[str], timeout_s: float = 120.0) -> list[Result]:
        results = [self.results[request_id] for request_id in request_ids]
        self.until(lambda: all(r.finish for r in results), timeout_s, "requests to finish")
        return results

    def run(self, prompts: Iterable[Sequence[int]], **options: object) -> list[list[int]]:
        ids = [self.submit(prompt, **options) for prompt in prompts]
        results = self.wait(ids)
        for result in results:
            assert result.finish in ("length", "stop"), (result.finish, result.error)
            assert not result.gaps
        return [result.tokens for result in results]

    def facts_of(self, request_id: str, kind: type[F], timeout_s: float = 10.0) -> list[F]:
        """The facts of one kind about a request, once there is one."""

        def found() -> list[F]:
            return [
                fact
                for _, fact in self.facts
                if isinstance(fact, kind) and getattr(fact, "request_id", "") == request_id
            ]

        self.until(lambda: bool(found()), timeout_s, f"{kind.__name__} of {request_id}")
        return found()

    # ------------------------------------------------------------ questions

    def inspect(self, name: str) -> Inspection:
        ticket = next(self._tickets)
        self.send(name, Inspect(ticket))
        self.until(lambda: ticket in self._answers, 30.0, "Inspection")
        answer = self._answers[ticket]
        assert isinstance(answer, Inspection)
        return answer

    def inventory(self, name: str) -> dict[bytes, int]:
        """key -> checksum of the bytes of every cached block."""
        ticket = next(self._tickets)
        self.send(name, GetInventory(ticket))
        self.until(lambda: ticket in self._answers, 30.0, "Inventory")
        return {block.key: block.checksum for block in self._inventories.pop(ticket)}

    def quiet(self, name: str, timeout_s: float = 60.0) -> Inspection:
        """Wait until nothing runs on a node; returns how it then stands."""
        found: list[Inspection] = []

        def idle() -> bool:
            found.append(self.inspect(name))
            load = found[-1].load
            return not (
                load.waiting_prefill
                + load.running_prefill
                + load.waiting_decode
                + load.running_decode
                + load.l1_used_blocks
            )

        self.until(idle, timeout_s, f"{name} to be idle")
        return found[-1]

    # ------------------------------------------------------------ wire

    def send(self, name: str, message: AnyMessage) -> None:
        assert self._listener.send(self.nodes[name].connection, message), f"{name} unreachable"

    def until(self, true: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not true():
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {n.name}\n{n.log()}" for n in self.nodes.values())
                raise TimeoutError(f"waited {timeout_s} s for {what}\n{logs}")
            self.pump(0.05)

    def pump(self, timeout_s: float) -> None:
        for node in self.nodes.values():
            if node.process is not None and node.process.poll() not in (None, 0, -9):
                raise AssertionError(f"{node.name} died: {node.process.returncode}\n{node.log()}")
        self._poller.poll(timeout_s * 1000)
        for received in self._listener.receive(1000):
            self._handle(received.peer, received.public_key, received.message)

    def _handle(self, peer: bytes, public_key: bytes, message: AnyMessage) -> None:
        node = next(n for n in self.nodes.values() if n.keypair.public == public_key)
        if isinstance(message, Hello):
            node.hello, node.connection = message, peer
            self.send(node.name, Welcome(CLUSTER, self.epoch, self.kv_secret))
        elif isinstance(message, Heartbeat):
            node.heartbeat = message
        elif isinstance(message, Tokens):
            self.results[message.request_id].add(message)
        elif isinstance(message, Facts):
            self.facts.extend((node.name, event) for event in message.events)
        elif isinstance(message, Inspection):
            self._answers[message.ticket] = message
        elif isinstance(message, Inventory):
            self._inventories.setdefault(message.ticket, []).extend(message.blocks)
            if message.last:
                self._answers[message.ticket] = message
        elif isinstance(message, Refused):
            self.refused.append(message)
            if message.request_id in self.results and not self.results[message.request_id].finish:
                self.results[message.request_id].finish = "refused"
                self.results[message.request_id].error = message.reason
