"""A cluster amid its work: recorded conversations in the directory, queues on nodes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec

from evctl.bench.directory.inputs import KEY_BYTES, MATCH, Input
from evctl.bench.directory.recorded import recorded
from evctl.core.branches import BranchSignal
from evctl.core.costs import Coefficients
from evctl.core.effects import Dispatch
from evctl.core.events import (
    CoefficientsFitted,
    EngineFact,
    FetchEnded,
    FirstToken,
    FromNode,
    KvStored,
    NodeJoined,
    NodeReport,
    PrefillStarted,
    RequestArrived,
    TransferDone,
)
from evctl.policy.state import ClusterState, PolicyConfig, StepResult, step

ROOT = b"root of the keys"
BOOT = "1"
BLOCK_TOKENS = 64
L1_BLOCKS = 200_000
L2_BLOCKS = 400_000
MODEL = Coefficients(8e-3, 2.2e-5, 1.1e-10, 3e-7, 9e-3, 4e-3, 1.1e-4, 256, 8, 1.8)
"""About one of eight GPUs and a mixture of experts; no figure here depends on it."""
OUTPUT_TOKENS = 512


class Shape(msgspec.Struct, frozen=True):
    """nodes, split: of the cluster. in_flight: requests for each node meanwhile. conversations,
    prompts: taken from the trace; the last `measured` of them are decisions that are timed.
    known: whether clients name their branches. options: of PolicyConfig."""

    nodes: int
    split: str
    in_flight: int = 6
    conversations: int = 120
    prompts: int = 6000
    measured: int = 2000
    known: bool = True
    options: dict[str, Any] = {}


class Stage:
    """The cluster, and the prompts still to be decided on."""

    def __init__(self, shape: Shape, trace: str) -> None:
        self.shape = shape
        self.now_s = 100.0
        self.made: Input = recorded(
            trace, shape.nodes, conversations=shape.conversations, prompts=shape.prompts
        )
        self._keys = random.Random(1).randbytes(self.made.blocks * KEY_BYTES)
        self._numbers = 0
        names = tuple(_name(node) for node in range(shape.nodes))
        config = PolicyConfig(names, shape.split, max_queued=10**6, **shape.options)
        self.state = ClusterState(config)
        for name in names:
            self._join(name)

    def prompts(self) -> Iterator[RequestArrived]:
        """Stores what was computed before, puts requests under way, then gives one prompt after
        the other; each is stored once the next one is asked for."""
        asked = [at for at, op in enumerate(self.made.operations) if op[0] == MATCH]
        first = asked[-min(self.shape.measured, len(asked) // 2)]
        for operation in self.made.operations[:first]:
            if operation[0] == MATCH:
                self._remember(operation[1])
            else:
                self._store(operation)
        self._busy(asked, first)
        for operation in self.made.operations[first:]:
            if operation[0] == MATCH:
                yield self.arrival(operation[1])
            else:
                self._store(operation)

    def arrival(self, path: int) -> RequestArrived:
        """A request with that prompt."""
        self._numbers += 1
        keys = self._slice(path, 0, self.made.length(path))
        tokens = len(keys) // KEY_BYTES * BLOCK_TOKENS + BLOCK_TOKENS // 2
        signal = BranchSignal(self.made.speakers[path]) if self.shape.known else None
        name = f"r{self._numbers}"
        return RequestArrived(name, "tenant", signal, tokens, OUTPUT_TOKENS, ROOT, keys)

    def feed(self, event: Any) -> StepResult:
        self.now_s += 1e-4
        return step(self.state, event, self.now_s)

    def report(self) -> None:
        """All nodes say that they live."""
        for name in self.state.nodes:
            self.feed(NodeReport(name, BOOT, 0, 0, 0, 0, L1_BLOCKS // 2, 0, L2_BLOCKS // 2))

    # ------------------------------------------------------------ inside

    def _join(self, name: str) -> None:
        sizes = L1_BLOCKS, BLOCK_TOKENS, 256, 10**6, L2_BLOCKS
        self.feed(NodeJoined(name, BOOT, *sizes))
        self.feed(CoefficientsFitted(name, MODEL, "fitted"))
        self.state.nodes[name].tokens_per_iteration = 8192.0

    def _remember(self, path: int) -> None:
        """A request of before: its branch is known, its conversation goes on."""
        event, directory = self.arrival(path), self.state.directory
        directory.arrive(
            event.request_id, "tenant", ROOT, event.block_keys, self.now_s, event.branch
        )
        directory.closed(event.request_id, self.now_s)
        directory.deltas()

    def _busy(self, asked: list[int], first: int) -> None:
        """Requests under way: a third decodes, a third is the first of its node and prefills
        where there is none yet, the others wait."""
        wanted = self.shape.nodes * self.shape.in_flight
        before = [self.made.operations[at][1] for at in asked if at < first]
        self.report()
        for number in range(wanted):
            event = self.arrival(before[-1 - number % len(before)])
            event = msgspec.structs.replace(event, branch=None)
            (dispatch,) = [e for e in self.feed(event).effects if isinstance(e, Dispatch)]
            self._progress(dispatch, event.prompt_tokens, number % 3)

    def _progress(self, sent: Dispatch, prompt_tokens: int, part: int) -> None:
        name, node = sent.request_id, self.state.nodes[sent.prefill_node]
        running = any(
            r.stage == "prefill" for r in self.state.prefills_of(node) if r.request_id != name
        )
        if part == 1 or (part == 2 and running):
            return
        left = self.state.requests[name].uncached_tokens
        if sent.fetch:
            self._fact(node.name, FetchEnded(name, 0, 0, (), 0.1, 0.0, 0))
        self._fact(node.name, PrefillStarted(name, prompt_tokens - left, left))
        if part == 0:
            self._fact(node.name, FirstToken(name, prompt_tokens))
            self._fact(node.name, TransferDone(name, sent.decode_node, 1, 1, 0))

    def _fact(self, node: str, fact: EngineFact) -> None:
        self.feed(FromNode(node, BOOT, fact))

    def _store(self, operation: tuple[int, int, int, int]) -> None:
        node, path, start, end = operation
        parent = self._slice(path, start - 1, start) if start else ROOT
        keys = self._slice(path, start, end)
        for tier in (1, 2):
            self._fact(_name(node), KvStored("", tier, parent, keys))

    def _slice(self, path: int, start: int, end: int) -> bytes:
        """Keys of blocks [start, end) of a path."""
        parts = []
        for first, count in self.made.paths[path]:
            low, high = max(start, 0), min(end, count)
            if low < high:
                parts.append(self._keys[(first + low) * KEY_BYTES : (first + high) * KEY_BYTES])
            start, end = start - count, end - count
            if end <= 0:
                break
        return b"".join(parts)


def _name(node: int) -> str:
    return f"node-{node:03}"
