"""No request is lost, each ends once, and the same events give the same bytes.

The model is a world of engines that may do anything the wire allows, beside a list of which
requests are open. It knows nothing of the policy's records.
"""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from evctl.core.branches import BranchSignal
from evctl.core.costs import Coefficients
from evctl.core.effects import AnyEffect, Cancel, Dispatch, Fail, FetchAhead, Recall, Reject
from evctl.core.events import (
    BranchSignalled,
    CoefficientsFitted,
    DispatchFailed,
    EngineFact,
    Event,
    FetchAheadEnded,
    FetchEnded,
    FirstToken,
    FromNode,
    IterationSample,
    KvEvicted,
    KvHeld,
    NodeJoined,
    NodeLost,
    NodeReport,
    Override,
    PrefillStarted,
    RecallDenied,
    Recalled,
    RequestArrived,
    RequestCancelled,
    RequestDone,
    Tick,
    TransferDone,
    TransferFailed,
)
from evctl.core.kv import FetchPiece, FetchSource
from evctl.core.split import Phase
from evctl.policy.pauses import EXPIRES_S
from evctl.policy.planner import PlannerConfig
from evctl.policy.state import ClusterState, PolicyConfig, check, step
from tests.policy.cluster import key

CONFIG = PolicyConfig(
    ("n1", "n2", "n3", "n4"),
    "2P2D",
    max_queued=4,
    fetch_ahead_blocks=6,
    generation=1,
    mode="auto",
    planner=PlannerConfig(
        window_s=3.0,
        slices=3,
        cooldown_s=0.5,
        least_requests=0,
        pending_s=5.0,
        probation=True,
    ),
)
"""With a planner that moves nodes whenever it likes, amid all that happens."""
L2_BLOCKS = {"n1": 20, "n2": 20, "n3": 20, "n4": 0}
STAGES = ("sent", "prefill", "sampled")


SIGNALS = st.none() | st.builds(
    BranchSignal,
    branch=st.sampled_from(["b1", "b2", "b3"]),
    parent=st.sampled_from(["", "b1", "b4"]),
    op=st.sampled_from(["continue", "fork", "spawn", "compact"]),
    version=st.none() | st.integers(0, 3),
    final=st.booleans(),
    expect_resume_s=st.none() | st.sampled_from([0.0, 1.5, 4.0]),
)


class World(RuleBasedStateMachine):
    config = CONFIG

    def __init__(self) -> None:
        super().__init__()
        self.state = ClusterState(self.config)
        self.now_s = 0.0
        self.numbers = 0
        self.boots = 0
        self.events: list[tuple[float, Event]] = []
        self.effects: list[bytes] = []
        self.alive: dict[str, str] = {}
        self.at: dict[str, list[str]] = {}
        """Open requests: [prefill node, decode node, stage at the engines]."""
        self.refused: set[str] = set()
        self.ended: dict[str, str] = {}
        self.l2: dict[str, set[bytes]] = {}
        self.prompts: dict[str, bytes] = {}
        self.fetching: dict[str, FetchAhead] = {}
        self.sent_s: dict[str, float] = {}
        self.tickets: list[tuple[str, str]] = []
        """Every ticket there was, with its node."""
        for name in CONFIG.nodes[:3]:
            self._join(name)
        self.fit(True)

    # ------------------------------------------------------------ one step

    def feed(self, event: Event) -> None:
        self.now_s += 0.25
        self.events.append((self.now_s, event))
        result = step(self.state, event, self.now_s)
        self.effects.append(msgspec.msgpack.encode(result.effects))
        for effect in result.effects:
            self._see(effect)
        if isinstance(event, Tick):
            assert result.next_tick_s is None or result.next_tick_s > self.now_s

    def _see(self, effect: AnyEffect) -> None:
        if isinstance(effect, Dispatch):
            assert effect.request_id not in self.ended
            assert effect.prefill_node in self.alive
            assert effect.decode_node in self.alive
            keys = self.prompts[effect.request_id]
            self._sound(effect.prefill_node, keys, effect.fetch)
            self.at[effect.request_id] = [effect.prefill_node, effect.decode_node, "sent"]
        elif isinstance(effect, Reject | Fail):
            self._end(effect.request_id, type(effect).__name__)
        elif isinstance(effect, Cancel):
            elsewhere = self.at.get(effect.request_id, [])[:2]
            ended = self.ended.get(effect.request_id, "")
            assert ended in ("Fail", "cancelled") or not set(elsewhere) & set(effect.nodes)
        elif isinstance(effect, Recall):
            # The planner decides before the event of its step counts, be it the client's cancel.
            cancelled = self.ended.get(effect.request_id) == "cancelled"
            assert cancelled or self.at[effect.request_id][0] == effect.node
        elif isinstance(effect, FetchAhead):
            self._sound(effect.node, effect.keys, effect.pieces)
            old = [t for t in self.fetching if self.sent_s[t] + EXPIRES_S <= self.now_s]
            for ticket in old:
                del self.fetching[ticket]
            self.fetching[effect.ticket] = effect
            self.sent_s[effect.ticket] = self.now_s
            self.tickets.append((effect.ticket, effect.node))
            asked = [p.end - p.start for one in self.fetching.values() for p in one.pieces]
            assert 0 < sum(asked) <= CONFIG.fetch_ahead_blocks

    def _sound(self, node: str, keys: bytes, pieces: tuple[FetchPiece, ...]) -> None:
        """Each block is asked from nodes that hold it, by one that does not."""
        assert node in self.alive
        assert L2_BLOCKS[node] or not pieces
        at = 0
        for piece in pieces:
            assert at <= piece.start < piece.end <= len(keys) // 16
            at = piece.end
            wanted = {keys[16 * i : 16 * i + 16] for i in range(piece.start, piece.end)}
            assert wanted.isdisjoint(self.l2[node])
            assert 0 < len(piece.nodes) <= 3
            for peer in piece.nodes:
                assert peer in self.alive
                assert wanted <= self.l2[peer]

    def _end(self, request_id: str, how: str) -> None:
        assert request_id not in self.ended, "a request ended twice"
        self.ended[request_id] = how
        self.at.pop(request_id, None)

    def _fact(self, node: str, fact: EngineFact) -> None:
        self.feed(FromNode(node, self.alive[node], fact))

    def _join(self, name: str) -> None:
        self.boots += 1
        boot = f"b{self.boots}"
        self.alive[name] = boot
        self._forget(name)
        self.feed(NodeJoined(name, boot, 40, 4, 3, 4096, L2_BLOCKS[name]))

    def _forget(self, name: str) -> None:
        self.l2[name] = set()
        self.fetching = {t: one for t, one in self.fetching.items() if one.node != name}

    def _pick(self, index: int, *stages: str) -> str | None:
        fitting = [r for r, place in self.at.items() if place[2] in stages]
        return fitting[index % len(fitting)] if fitting else None

    # ------------------------------------------------------------ clients and operators

    @rule(tokens=st.integers(1, 60), shared=st.integers(0, 5), branch=SIGNALS)
    def arrive(self, tokens: int, shared: int, branch: BranchSignal | None) -> None:
        self.numbers += 1
        name = f"r{self.numbers}"
        full = tokens // 4
        keys = [key(i if i < shared else 1000 * self.numbers + i) for i in range(full)]
        self.prompts[name] = b"".join(keys)
        waiting = sum(place[2] == "sent" for place in self.at.values())
        self.feed(RequestArrived(name, "t", branch, tokens, 8, b"", b"".join(keys)))
        rejected = self.ended.get(name) == "Reject"
        assert rejected == (waiting >= CONFIG.max_queued or not self.alive)
        assert rejected or name in self.at

    @rule(index=st.integers(0, 9))
    def cancel(self, index: int) -> None:
        if name := self._pick(index, *STAGES, "handed"):
            self._end(name, "cancelled")
            self.feed(RequestCancelled(name))

    @rule(signal=SIGNALS, what=st.sampled_from(["end", "rewrite", "fork"]))
    def signal(self, signal: BranchSignal | None, what: str) -> None:
        if signal is not None:
            self.feed(BranchSignalled("t", what, signal))

    @rule(slow=st.booleans())
    def fit(self, slow: bool) -> None:
        """Prefill is slow or quick, which makes other splits the better ones."""
        for name in CONFIG.nodes:
            model = Coefficients(1e-4, 1e-1 if slow else 1e-6, 0.0, 0.0, 1.0, 0.0, 1.0)
            self.feed(CoefficientsFitted(name, model, "fitted"))

    @rule(split=st.sampled_from(["1P3D", "2P2D", "3P1D", "9P9D"]))
    def override(self, split: str) -> None:
        self.feed(Override("hold", split, "model", ""))

    # ------------------------------------------------------------ engines

    @rule(index=st.integers(0, 9))
    def begin(self, index: int) -> None:
        if name := self._pick(index, "sent"):
            place = self.at[name]
            place[2] = "prefill"
            self._fact(place[0], PrefillStarted(name, 0, 5))

    @rule(index=st.integers(0, 9), tokens=st.integers(0, 9), decodes=st.integers(0, 1))
    def iterate(self, index: int, tokens: int, decodes: int) -> None:
        if self.alive:
            node = sorted(self.alive)[index % len(self.alive)]
            fact = IterationSample(Phase.PREFILL, 0.01, tokens, 1.0, 0, decodes)
            self._fact(node, fact)

    @rule(name=st.sampled_from(CONFIG.nodes), speed=st.sampled_from([1.0, 3.0]))
    def fit_one(self, name: str, speed: float) -> None:
        model = Coefficients(4 * speed, speed, 0.01, 0.1, speed, 0.0, 0.1 * speed)
        self.feed(CoefficientsFitted(name, model, "fitted"))

    @rule(index=st.integers(0, 9))
    def sample(self, index: int) -> None:
        if name := self._pick(index, "prefill"):
            place = self.at[name]
            place[2] = "sampled" if place[0] != place[1] else "handed"
            self._fact(place[0], FirstToken(name, 5))

    @rule(index=st.integers(0, 9), whole=st.booleans())
    def transfer(self, index: int, whole: bool) -> None:
        if name := self._pick(index, "sampled"):
            place = self.at[name]
            source, target = place[:2]
            place[2] = "handed"
            if whole and target in self.alive:
                place[0] = target
                self._fact(source, TransferDone(name, target, 1, 1, 0))
            else:
                place[1] = source
                self._fact(source, TransferFailed(name, target, "model"))

    @rule(index=st.integers(0, 9), reason=st.sampled_from(["length", "error"]))
    def finish(self, index: int, reason: str) -> None:
        if name := self._pick(index, "handed"):
            owner = self.at[name][0]
            self._end(name, "done")
            self._fact(owner, RequestDone(name, reason, 1, 0, 1))

    @rule(index=st.integers(0, 9), retry=st.booleans())
    def refuse(self, index: int, retry: bool) -> None:
        if name := self._pick(index, "sent"):
            self.refused.add(name)
            self.feed(DispatchFailed(name, self.at[name][0], "EV-2307", "full", retry))
            assert name in self.at or self.ended[name] == "Fail"

    @rule(
        branch=st.sampled_from(["b1", "b2", "b5"]),
        resume_s=st.sampled_from([None, 0.5, 2.0, 2.0]),
        quiet_s=st.sampled_from([0.1, 0.9, 3.0]),
    )
    def live_through(self, branch: str, resume_s: float | None, quiet_s: float) -> None:
        """A request of a branch from arrival to end, whose decode node keeps its prompt; then
        time passes, which is when fetches ahead are sent."""
        self.numbers += 1
        name = f"r{self.numbers}"
        keys = self.prompts[name] = b"".join(key(i) for i in range(5))
        signal = BranchSignal(branch, expect_resume_s=resume_s)
        self.feed(RequestArrived(name, "t", signal, 21, 8, b"", keys))
        if name not in self.at:
            return
        prefill, decode, _ = self.at[name]
        self.at[name][2] = "prefill"
        self._fact(prefill, PrefillStarted(name, 0, 5))
        self._fact(prefill, FirstToken(name, 5))
        if prefill != decode:
            self._fact(prefill, TransferDone(name, decode, 1, 1, 0))
        self.store(sorted(self.alive).index(decode), 2, 4)
        for node in sorted(self.alive):
            self.report(node, 6)
        self._end(name, "done")
        self._fact(decode, RequestDone(name, "length", 1, 0, 1))
        self.tick(quiet_s)

    @rule(index=st.integers(0, 9))
    def recall(self, index: int) -> None:
        """An engine answers a recall, asked or not: the reducer must cope with both."""
        if name := self._pick(index, "sent"):
            self._fact(self.at[name][0], Recalled(name))
            assert name in self.at

    @rule(index=st.integers(0, 9))
    def deny(self, index: int) -> None:
        if name := self._pick(index, *STAGES):
            self._fact(self.at[name][0], RecallDenied(name))

    @rule(index=st.integers(0, 9), tier=st.integers(1, 2), first=st.integers(0, 4))
    def store(self, index: int, tier: int, first: int) -> None:
        if self.alive:
            node = sorted(self.alive)[index % len(self.alive)]
            tier = tier if L2_BLOCKS[node] else 1
            path = [key(i) for i in range(first + 2)]
            self.l2[node] |= set(path) if tier == 2 else set()
            self._fact(node, KvHeld(tier, b"", b"".join(path)))
            self.l2[node] -= {path[-1]} if tier == 2 else set()
            self._fact(node, KvEvicted(tier, path[-1]))

    @rule(index=st.integers(0, 9), first=st.integers(0, 4))
    def evict(self, index: int, first: int) -> None:
        if self.alive:
            node = sorted(self.alive)[index % len(self.alive)]
            self.l2[node].discard(key(first))
            self._fact(node, KvEvicted(2, key(first)))

    @rule(
        index=st.integers(0, 9),
        stage=st.sampled_from([*STAGES, "handed", "sent"]),
        fetched=st.integers(0, 6),
        missed=st.integers(0, 6),
        fetch_s=st.sampled_from([0.0, 0.01, 3.0]),
    )
    def fetch_ended(
        self, index: int, stage: str, fetched: int, missed: int, fetch_s: float
    ) -> None:
        """In time, twice, late, of another placement, or of a request that is long over."""
        name = self._pick(index, stage) or next(iter(self.ended), None)
        if name is None or not self.alive:
            return
        node = self.at[name][0] if name in self.at else sorted(self.alive)[0]
        peers = (FetchSource("n2", fetched, 64 * fetched),) if fetched else ()
        self._fact(node, FetchEnded(name, 0, 0, peers, fetch_s, 0.0, missed, "gone"))
        if stage == "sent" and name in self.at:
            request = self.state.directory.requests.open[name]
            assert request.leases == ()

    @rule(index=st.integers(0, 99), missed=st.integers(0, 2))
    def ahead_ended(self, index: int, missed: int) -> None:
        """Of any ticket that ever was, from the node that had it if that lives."""
        if self.tickets:
            ticket, node = self.tickets[index % len(self.tickets)]
            if node in self.alive:
                self.fetching.pop(ticket, None)
                peers = (FetchSource("n1", 1, 64),)
                self._fact(node, FetchAheadEnded(ticket, peers, 0.02, missed))
                assert ticket not in self.state.ahead.tickets

    # ------------------------------------------------------------ nodes

    @precondition(lambda self: len(self.alive) > 1)
    @rule(index=st.integers(0, 9))
    def lose(self, index: int) -> None:
        name = sorted(self.alive)[index % len(self.alive)]
        for place in self.at.values():
            # an engine that loses its peer goes on alone
            if place[1] == name and place[2] != "handed":
                place[1] = place[0]
        boot = self.alive.pop(name)
        self._forget(name)
        begun = {r for r, place in self.at.items() if place[0] == name and place[2] != "sent"}
        sent = {r for r, place in self.at.items() if place[0] == name} - begun
        self.feed(NodeLost(name, boot, "model"))
        assert begun.isdisjoint(self.at), "a request of a lost node goes on"
        # one that others refused may have nobody left to go to
        assert not self.alive or sent - self.refused <= set(self.at), "one that had not begun"
        assert all(place[0] in self.alive for place in self.at.values())

    @rule(name=st.sampled_from(CONFIG.nodes))
    def rejoin(self, name: str) -> None:
        if name in self.alive:
            for place in self.at.values():
                if place[1] == name and place[2] != "handed":
                    place[1] = place[0]
        self._join(name)

    @rule(quiet_s=st.floats(0.1, 3.0))
    def tick(self, quiet_s: float) -> None:
        self.now_s += quiet_s
        self.feed(Tick())

    @rule(name=st.sampled_from(CONFIG.nodes), used=st.integers(0, 40))
    def report(self, name: str, used: int) -> None:
        boot = self.alive.get(name, "b0")
        l2_used = min(used, L2_BLOCKS[name])
        self.feed(NodeReport(name, boot, 0, 0, 0, 0, used, 0, l2_used))

    # ------------------------------------------------------------ always

    @invariant()
    def agrees(self) -> None:
        assert check(self.state) == []
        assert set(self.state.requests) == set(self.at)
        for name, place in self.at.items():
            assert set(self.state.requests[name].nodes) <= {*place[:2]}
        assert self.state.waiting <= CONFIG.max_queued
        assert set(self.state.ahead.tickets) <= set(self.fetching)

    def teardown(self) -> None:
        state = ClusterState(self.config)
        again = [msgspec.msgpack.encode(step(state, e, t).effects) for t, e in self.events]
        assert again == self.effects, "the same events gave other effects"


World.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAccounting = World.TestCase


class Plus(World):
    """Both switches, and a price for what must make room."""

    config = msgspec.structs.replace(
        CONFIG, shortest_first=True, prefill_ageing=0.5, append_tokens=8, duplicate_block_s=0.1
    )


class CacheAware(World):
    config = msgspec.structs.replace(CONFIG, routing="cache-aware")


class InTurns(World):
    config = msgspec.structs.replace(CONFIG, routing="round-robin")


SETTINGS = settings(max_examples=60, stateful_step_count=40, deadline=None)
Plus.TestCase.settings = CacheAware.TestCase.settings = InTurns.TestCase.settings = SETTINGS
TestPlus, TestCacheAware, TestInTurns = Plus.TestCase, CacheAware.TestCase, InTurns.TestCase
