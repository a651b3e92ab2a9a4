"""A stand-in for the control plane: starts engine processes and speaks the wire with them."""

from __future__ import annotations

import itertools
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq

from evctl.bench.engines.node import EngineFailedError, Node
from evctl.bench.engines.results import Result
from evctl.core.blocks import KvNamespace, block_keys, root_key
from evctl.core.events import EngineFact, TransferDone
from evctl.core.kv import FetchPiece
from evctl.core.sampling import SamplingParams
from evctl.wire.keys import KeyRing, generate_keypair, save_keypair, to_z85
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
    WarmUp,
    Welcome,
)
from evctl.wire.sockets import Listener

F = TypeVar("F")
CLUSTER = "test"
START_TIMEOUT_S = 90.0
ENTRY = ("-m", "evengine")


class Driver:
    """Engines over one model, and everything they said.

    entry: arguments of Python that start an engine; entries: of single nodes. options: keys of
    the engines' configuration. What an engine does not do in time raises EngineFailedError.
    """

    def __init__(
        self,
        folder: Path,
        model: Path,
        names: Sequence[str] = ("a", "b"),
        *,
        entry: Sequence[str] = ENTRY,
        entries: dict[str, Sequence[str]] | None = None,
        **options: object,
    ) -> None:
        self.kv_secret = secrets.token_bytes(32)
        self.epoch = 1
        self.results: dict[str, Result] = {}
        self.facts: list[tuple[str, EngineFact]] = []
        self.refused: list[Refused] = []
        self._facts_about: dict[str, list[EngineFact]] = defaultdict(list)
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
        common = {
            "cluster": CLUSTER,
            "control_endpoint": self._listener.endpoint,
            "control_public_key": to_z85(keypair.public),
            "model": str(model),
            **options,
        }
        self.nodes = {
            name: self._new_node(folder, name, common, (entries or {}).get(name, entry))
            for name in names
        }

    def _new_node(
        self, folder: Path, name: str, common: dict[str, object], entry: Sequence[str]
    ) -> Node:
        keypair = generate_keypair()
        key_path = folder / f"{name}.key"
        save_keypair(keypair, key_path)
        self.ring.add(keypair.public)
        path = folder / f"{name}.json"
        path.write_bytes(msgspec.json.encode({**common, "node": name, "keypair": str(key_path)}))
        return Node(name, keypair, path, entry)

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
        """Whether a request's KV was sent to another node; waits until that is known."""
        told = ("TransferDone", "TransferFailed", "RequestDone")
        about = self._facts_about[request_id]
        self.until(
            lambda: any(type(fact).__name__ in told for fact in about),
            5.0,
            "the facts of a request",
        )
        return any(isinstance(fact, TransferDone) for fact in about)

    def stop(self) -> None:
        for node in self.nodes.values():
            node.stop()
        self._listener.close()
        self._context.destroy(linger=0)

    def __enter__(self) -> Driver:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ------------------------------------------------------------ requests

    def keys(self, node: str, tenant: str, tokens: Sequence[int]) -> tuple[bytes, list[bytes]]:
        """The root key, and the key of each full block of `tokens`."""
        hello = self.nodes[node].known()
        root = root_key(self.kv_secret, KvNamespace(tenant, hello.weights_hash))
        return root, block_keys(self.kv_secret, root, tokens, hello.layout.block_tokens)

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
        request_id = request_id or f"r{next(self._names)}"
        root, keys = self.keys(prefill, tenant, prompt)
        params = msgspec.convert({"max_tokens": 8, "ignore_eos": True, **sampling}, SamplingParams)
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

    def warm_up(self, name: str, on: bool) -> None:
        """Have a node run prefill and decode in turns, or together again."""
        self.send(name, WarmUp(on))

    def cancel(self, request_id: str, *names: str) -> None:
        for name in names or self.nodes:
            self.send(name, CancelRequest(request_id))

    def wait(self, request_ids: Iterable[str], timeout_s: float = 120.0) -> list[Result]:
        results = [self.results[request_id] for request_id in request_ids]
        self.until(lambda: all(r.finish for r in results), timeout_s, "requests to finish")
        return results

    def run(self, prompts: Iterable[Sequence[int]], **options: object) -> list[list[int]]:
        """Output of each prompt. options: of submit()."""
        ids = [self.submit(prompt, **options) for prompt in prompts]  # type: ignore[arg-type]
        return [result.tokens for result in self.whole(ids)]

    def whole(self, request_ids: Iterable[str]) -> list[Result]:
        """Results once all have ended. Raises EngineFailedError for one that is not whole."""
        results = self.wait(request_ids)
        for result in results:
            if result.finish not in ("length", "stop") or result.gaps:
                why = f"{result.finish}, {result.error or 'tokens are missing'}"
                raise EngineFailedError(f"request {result.request_id} failed", why)
        return results

    def facts_about(self, request_id: str, kind: type[F]) -> list[F]:
        """The facts of one kind about a request that have come so far."""
        return [fact for fact in self._facts_about[request_id] if isinstance(fact, kind)]

    def facts_of(self, request_id: str, kind: type[F], timeout_s: float = 10.0) -> list[F]:
        """The facts of one kind about a request, once there is one."""
        self.until(
            lambda: bool(self.facts_about(request_id, kind)),
            timeout_s,
            f"{kind.__name__} of {request_id}",
        )
        return self.facts_about(request_id, kind)

    # ------------------------------------------------------------ questions

    def inspect(self, name: str) -> Inspection:
        ticket = next(self._tickets)
        self.send(name, Inspect(ticket))
        self.until(lambda: ticket in self._answers, 30.0, "Inspection")
        answer = self._answers.pop(ticket)
        assert isinstance(answer, Inspection)
        return answer

    def blocks(self, name: str) -> list[InventoryBlock]:
        """Every cached block of a node, of both tiers."""
        ticket = next(self._tickets)
        self.send(name, GetInventory(ticket))
        self.until(lambda: ticket in self._answers, 30.0, "Inventory")
        del self._answers[ticket]
        return self._inventories.pop(ticket)

    def inventory(self, name: str) -> dict[bytes, int]:
        """key -> checksum of the bytes of every cached block."""
        return {block.key: block.checksum for block in self.blocks(name)}

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
        if not self._listener.send(self.nodes[name].connection, message):
            raise EngineFailedError(f"engine {name} takes no message", "it is unreachable")

    def until(self, true: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not true():
            if time.monotonic() > deadline_s:
                logs = "\n".join(f"--- {n.name}\n{n.log()}" for n in self.nodes.values())
                raise EngineFailedError("engines are too slow", f"{timeout_s} s: {what}", log=logs)
            self.pump(0.05)

    def pump(self, timeout_s: float) -> None:
        """Take in what engines say, for at most so long if they say nothing."""
        for node in self.nodes.values():
            node.check_alive()
        self._poller.poll(int(timeout_s * 1000))
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
            for event in message.events:
                self.facts.append((node.name, event))
                self._facts_about[getattr(event, "request_id", "")].append(event)
        elif isinstance(message, Inspection):
            self._answers[message.ticket] = message
        elif isinstance(message, Inventory):
            self._inventories.setdefault(message.ticket, []).extend(message.blocks)
            if message.last:
                self._answers[message.ticket] = message
        elif isinstance(message, Refused):
            self._refuse(message)

    def _refuse(self, message: Refused) -> None:
        self.refused.append(message)
        result = self.results.get(message.request_id)
        if result is not None and not result.finish:
            result.finish, result.error = "refused", message.reason
