"""A cluster for policy tests: step() with its checks, and engines that answer on command."""

from __future__ import annotations

import msgspec

from evctl.core.branches import BranchSignal
from evctl.core.effects import AnyEffect, Dispatch
from evctl.core.events import (
    EngineFact,
    Event,
    FirstToken,
    FromNode,
    KvHeld,
    NodeJoined,
    NodeReport,
    Override,
    PrefillStarted,
    RequestArrived,
    RequestDone,
    TransferDone,
)
from evctl.policy.state import ClusterState, PolicyConfig, StepResult, check, step

BLOCK_TOKENS = 4


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def keys(*numbers: int) -> bytes:
    return b"".join(key(number) for number in numbers)


class Cluster:
    """Every step is checked; `log` keeps all effects."""

    def __init__(
        self, nodes: int = 3, split: str = "2P1D", *, l2_blocks: int = 0, **config: object
    ) -> None:
        self.l2_blocks = l2_blocks
        names = tuple(f"n{i + 1}" for i in range(nodes))
        self.state = ClusterState(PolicyConfig(names, split, **config))  # type: ignore[arg-type]
        self.now_s = 100.0
        self.log: list[AnyEffect] = []
        self.last: StepResult | None = None
        for name in names:
            self.join(name)

    def feed(self, event: Event) -> list[AnyEffect]:
        self.last = step(self.state, event, self.now_s)
        problems = check(self.state)
        assert not problems, problems
        self.log.extend(self.last.effects)
        return list(self.last.effects)

    def join(self, name: str, boot: str = "boot1") -> list[AnyEffect]:
        l2_blocks = self.l2_blocks
        return self.feed(NodeJoined(name, boot, 1000, BLOCK_TOKENS, 64, 4096, l2_blocks))

    def boot(self, name: str) -> str:
        return self.state.nodes[name].boot_id

    def beat(self, *names: str, l2_used: int = 0) -> list[AnyEffect]:
        effects = []
        for name in names or tuple(self.state.nodes):
            effects += self.feed(NodeReport(name, self.boot(name), 0, 0, 0, 0, 0, 0, l2_used))
        return effects

    def fact(self, name: str, fact: EngineFact) -> list[AnyEffect]:
        return self.feed(FromNode(name, self.boot(name), fact))

    def arrive(
        self,
        request_id: str,
        tokens: int = 40,
        block_keys: bytes = b"",
        branch: BranchSignal | None = None,
    ) -> Dispatch:
        effects = self.feed(RequestArrived(request_id, "t", branch, tokens, 16, b"", block_keys))
        (dispatch,) = [e for e in effects if isinstance(e, Dispatch)]
        return dispatch

    def holds(self, name: str, tier: int, *numbers: int) -> None:
        """The node has the path of these blocks."""
        self.fact(name, KvHeld(tier, b"", keys(*numbers)))

    def leading(self, name: str, *numbers: int) -> int:
        """Leading blocks that the node has or has promised."""
        match = self.state.directory.match(keys(*numbers))
        return max(match.coverage.get(name, 0), match.promised.get(name, 0))

    def hold(self, split: str) -> list[AnyEffect]:
        return self.feed(Override("hold", split, "me", ""))

    # what engines do with a request

    def start(self, request_id: str, cached: int = 0) -> None:
        record = self.state.requests[request_id]
        uncached = record.prompt_tokens - cached
        self.fact(record.prefill_node, PrefillStarted(request_id, cached, uncached))

    def first_token(self, request_id: str) -> None:
        record = self.state.requests[request_id]
        self.fact(record.prefill_node, FirstToken(request_id, record.prompt_tokens))

    def hand_over(self, request_id: str) -> None:
        record = self.state.requests[request_id]
        self.fact(record.prefill_node, TransferDone(request_id, record.decode_node, 1, 1, 0))

    def done(self, request_id: str, reason: str = "length") -> list[AnyEffect]:
        record = self.state.requests[request_id]
        return self.fact(record.decode_node, RequestDone(request_id, reason, 1, 0, 1))

    def decode(self, request_id: str) -> None:
        """Take a request to its decode node."""
        self.start(request_id)
        self.first_token(request_id)
        if self.state.requests[request_id].stage != "decode":
            self.hand_over(request_id)


def of(effects: list[AnyEffect], kind: type) -> list[AnyEffect]:
    return [effect for effect in effects if isinstance(effect, kind)]


def sent(effects: list[AnyEffect]) -> list[Dispatch]:
    """Dispatches without what was predicted of them."""
    found = (effect for effect in effects if isinstance(effect, Dispatch))
    return [msgspec.structs.replace(dispatch, predicted=None) for dispatch in found]
