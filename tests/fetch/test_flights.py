"""Fetches between nodes whose network, time and copies do their worst, step by step.

Letters are late, lost, repeated and out of order; reads fail, lie and write late; peers vanish and
come back as others; requests come and go. At every step the books of all nodes agree and no tier
holds a wrong byte; in the end every request has run with the right KV and nothing is left over.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from evctl.core.events import FetchAheadEnded
from evctl.core.kv import FetchPiece
from evctl.policy.eviction import RefClass
from evctl.wire.messages import FetchAhead
from evengine.fetch.lender import LONGEST_S
from evengine.fetch.limits import FetchLimits
from tests.fetch.nodes import ROOT, STRIDE, Node, chain
from tests.fetch.transport import How
from tests.fetch.world import Asked, World

LIMITS = FetchLimits(batch_blocks=2, bytes_in_flight=3 * STRIDE, restore_blocks=2)
CONTEXTS = [(0, 0, 0, 0, 0, 0), (0, 0, 0, 1, 1), (0, 0, 1, 0, 0, 0), (1, 1, 1, 1, 0), (1, 1, 0)]
PATHS = st.tuples(st.sampled_from(CONTEXTS), st.sampled_from([9, 9, 4, 2, 1])).map(
    lambda drawn: drawn[0][: drawn[1]]
)
NODES = st.lists(st.sampled_from(["b", "c", "a", "nowhere"]), max_size=3).map(tuple)
GOOD = st.tuples(st.permutations(["b", "c"]), st.integers(1, 2)).map(
    lambda drawn: [FetchPiece(0, 6, tuple(drawn[0][: drawn[1]]))]
)
PIECES = st.one_of(
    GOOD,
    GOOD,
    st.lists(st.builds(FetchPiece, st.integers(-2, 7), st.integers(-2, 9), NODES), max_size=4),
)
ROUNDS = 400
Path = tuple[int, ...]


class FetchMachine(RuleBasedStateMachine):
    """Nodes a and b run requests, and all lend; c only lends."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        for name in "abc":
            self.world.start(name, limits=LIMITS, l2_blocks=20 if name == "c" else 9)
        self.asked: list[Asked] = []
        self.over: list[Asked] = []
        self.aheads: list[str] = []
        self.epoch = 0

    @initialize(at_b=st.lists(PATHS, max_size=2), at_c=st.lists(PATHS, min_size=1, max_size=4))
    def computed_before(self, at_b: list[Path], at_c: list[Path]) -> None:
        for name, paths in (("b", at_b), ("c", at_c)):
            for path in paths:
                self.world.nodes[name].plant(chain(path))

    # ------------------------------------------------------------ who wants what

    @rule(name=st.sampled_from("aaab"), path=PATHS, pieces=PIECES, admit=st.booleans())
    def request(self, name: str, path: Path, pieces: list[FetchPiece], admit: bool) -> None:
        node = self.world.nodes.get(name)
        if node is not None:
            self.asked.append(self.world.request(node, path, pieces))
            if admit:
                self.world.admit(self.asked[-1])
            node.turn(self.world.clock.now_s())

    @precondition(lambda self: any(not one.admitted for one in self.asked))
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        waiting = [one for one in self.asked if not one.admitted]
        self.world.admit(data.draw(st.sampled_from(waiting)))

    @rule()
    def run(self) -> None:
        for asked in [one for one in self.asked if one.runnable]:
            self.end(asked)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        asked = data.draw(st.sampled_from(self.asked))
        self.world.cancel(asked)
        self.asked.remove(asked)
        self.over.append(asked)

    @rule(path=PATHS, pieces=PIECES, number=st.integers(0, 20))
    def ahead(self, path: Path, pieces: list[FetchPiece], number: int) -> None:
        node = self.world.nodes["a"]
        ticket = f"t{number}"
        keys = b"".join(chain(path))
        node.fetcher.fetch_ahead(FetchAhead(ticket, ROOT, keys, tuple(pieces)))
        self.aheads.append(ticket)
        node.turn(self.world.clock.now_s())

    def end(self, asked: Asked) -> None:
        (fact,) = asked.ended() or [None]
        if fact is not None:
            found = fact.l1_blocks + fact.own_blocks + sum(peer.blocks for peer in fact.peers)
            assert found == asked.seq.published
            assert bool(fact.missed_blocks) == bool(fact.cause)
        self.world.finish(asked)
        self.asked.remove(asked)
        self.over.append(asked)

    # ------------------------------------------------------------ what goes on

    @rule(rounds=st.integers(0, 2))
    def all_is_well(self, rounds: int) -> None:
        self.world.turn()
        for _ in range(rounds):
            self.world.calm()

    @precondition(lambda self: self.world.wire)
    @rule(data=st.data(), fate=st.sampled_from(["comes", "comes", "comes again", "is lost"]))
    def letter(self, data: st.DataObject, fate: str) -> None:
        index = data.draw(st.integers(0, len(self.world.wire) - 1))
        if fate == "is lost":
            del self.world.wire[index]
        else:
            self.world.deliver(index, again=fate == "comes again")

    @precondition(lambda self: self.world.wire)
    @rule()
    def letters(self) -> None:
        """All that are on their way, the last one first, and the answers to them."""
        while self.world.wire:
            self.world.deliver(len(self.world.wire) - 1)

    @precondition(lambda self: self.reads())
    @rule(data=st.data(), how=st.sampled_from([How.DONE, *How]), turn=st.booleans())
    def read_ends(self, data: st.DataObject, how: How, turn: bool) -> None:
        node, ticket = data.draw(st.sampled_from(self.reads()))
        node.transfer.end(ticket, how)
        if turn:
            self.world.turn()

    def reads(self) -> list[tuple[Node, int]]:
        return [(node, t) for node in self.world.nodes.values() for t in node.transfer.pending]

    @precondition(lambda self: any(n.copier.blocks_under_way for n in self.world.nodes.values()))
    @rule(turn=st.booleans())
    def copies(self, turn: bool) -> None:
        for node in self.world.nodes.values():
            node.copier.step()
        if turn:
            self.world.turn()

    @precondition(lambda self: any(n.transfer.late for n in self.world.nodes.values()))
    @rule()
    def late_writes(self) -> None:
        for node in self.world.nodes.values():
            while node.transfer.late:
                node.transfer.write_late(0)

    @rule(seconds=st.sampled_from([0.1, 0.1, 0.5, 0.5, 1.0, 3.0, 6.0, LONGEST_S + 1]))
    def time_passes(self, seconds: float) -> None:
        self.world.clock.time_s += seconds
        for node in self.world.nodes.values():
            node.transfer.forget_late()
            node.mailbox.silent.clear()  # it has answered a ping meanwhile

    # ------------------------------------------------------------ what else happens

    @rule(
        data=st.data(),
        name=st.sampled_from("aabc"),
        what=st.sampled_from(["vanish", "compute", "compute", "spoil", "spoil", "reclassify"]),
    )
    def meanwhile(self, data: st.DataObject, name: str, what: str) -> None:
        node = self.world.nodes.get(name)
        if node is None:
            self.world.start(name, limits=LIMITS, l2_blocks=9)
        elif what == "vanish" and name != "a":
            self.asked = [one for one in self.asked if one.node is not node]
            self.over = [one for one in self.over if one.node is not node]
            self.world.vanish(name)
        elif what == "compute":  # other blocks may have to go for these
            node.plant(chain(data.draw(PATHS)))
        elif what == "spoil":
            self.spoil(data, node)
        else:
            self.epoch += 1
            ref_class = data.draw(st.sampled_from(RefClass))
            node.store.reclassify(self.epoch, ref_class, b"".join(chain(data.draw(PATHS))))

    def spoil(self, data: st.DataObject, node: Node) -> None:
        """A byte in host memory goes bad."""
        held = sorted(node.pool.blocks(), key=lambda block: block.key)
        if held:
            block = data.draw(st.sampled_from(held))
            if node.spoiled.get(block.key) is not block:
                node.pool.data(block.slot)[5] ^= 1
                node.spoiled[block.key] = block

    # ------------------------------------------------------------ what must hold

    @invariant()
    def sound(self) -> None:
        for node in self.world.nodes.values():
            assert node.problems() == []
        for asked in self.asked:
            assert len(asked.ended()) == (asked.planned and asked.seq.intake is None)

    def teardown(self) -> None:
        try:
            self.quiesce()
        finally:
            self.world.close()

    def quiesce(self) -> None:
        """Everything comes to its end, and nothing is left."""
        for _ in range(ROUNDS):
            for asked in list(self.asked):
                if not asked.admitted:
                    self.world.admit(asked)
                if asked.runnable:
                    self.end(asked)
            self.world.clock.time_s += 0.2
            self.sound()
            if self.world.calm() and not self.asked and not self.fetching():
                break
        assert self.asked == [], "a request waits for ever"
        self.world.clock.time_s += LONGEST_S + 1
        self.world.turn()
        for asked in self.over:
            assert len(asked.ended()) == asked.planned
        for node in self.world.nodes.values():
            assert {what: left for what, left in node.remains().items() if left} == {}
        told = [
            f.ticket for f in self.world.nodes["a"].mailbox.told if isinstance(f, FetchAheadEnded)
        ]
        assert sorted(told) == sorted(self.aheads)

    def fetching(self) -> bool:
        return any(node.fetcher.count for node in self.world.nodes.values())


TestFetches = pytest.mark.timeout(900)(FetchMachine.TestCase)  # to shrink what it finds
TestFetches.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
