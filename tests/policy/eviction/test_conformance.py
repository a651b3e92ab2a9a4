"""One suite for every eviction order; three of them must agree with a plain model exactly."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from evctl.policy.eviction import (
    ORDERS,
    Belady,
    Ending,
    EvictionOrder,
    ExpectedUse,
    RefClass,
    make_order,
)
from tests.policy.eviction.naive import Naive

POOL_BLOCKS = 20
FANOUT = 3
CHOICES = st.integers(0, 2**16)


def ancestry(key: int) -> list[int]:
    """Keys form a tree by arithmetic: the children of k are 3k+1, 3k+2, 3k+3. Root first."""
    path = [key]
    while path[-1] >= FANOUT:
        path.append((path[-1] - 1) // FANOUT)
    return path[::-1]


class OrderMachine(RuleBasedStateMachine):
    """Drives an order and the model side by side. `make` and `exact` are set by the tests."""

    make: Callable[[], EvictionOrder]
    exact: str = ""

    def __init__(self) -> None:
        super().__init__()
        self.order: Any = type(self).make()
        self.model = Naive()
        self.now_s = 0.0
        self.epoch = 0

    def some(self, keys: list[int], choice: int) -> int:
        return sorted(keys)[choice % len(keys)]

    @rule(
        branch=st.sampled_from(["a", "b", "c", None]),
        leaf=st.integers(0, 24),
        blocks=st.integers(1, 3),
    )
    def request_rule(self, branch: str | None, leaf: int, blocks: int) -> None:
        self.request(branch, leaf, blocks)

    def request(self, branch: str | None, leaf: int, blocks: int) -> None:
        path = ancestry(leaf)
        for depth, key in enumerate(path):
            if key not in self.order:
                self.order.insert(key, depth, blocks)
                self.model.insert(key, depth, blocks)
        self.order.access(branch, path, self.now_s)
        self.model.access(branch, path, self.now_s)

    @rule(leaves=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 24)), max_size=5))
    def requests(self, leaves: list[tuple[str, int]]) -> None:
        for branch, leaf in leaves:
            self.now_s += 1.0
            self.request(branch, leaf, 1)
            self.settle(branch, Ending.TURN if leaf % 3 else Ending.TOOL_CALL, None)

    @rule(branch=st.sampled_from("abcx"), leaf=st.integers(0, 24))
    def reads_what_is_held(self, branch: str, leaf: int) -> None:
        """As a request whose missing blocks found no room: only the leading ones are there."""
        path = []
        for key in ancestry(leaf):
            if key not in self.order:
                break
            path.append(key)
        self.order.access(branch, path, self.now_s)
        self.model.access(branch, path, self.now_s)

    @rule(seconds=st.sampled_from([0.1, 3.0, 40.0, 900.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(
        branch=st.sampled_from("abcx"),
        ending=st.sampled_from(Ending),
        expect_s=st.sampled_from([None, None, 5.0, 500.0]),
    )
    def settle_rule(self, branch: str, ending: Ending, expect_s: float | None) -> None:
        self.settle(branch, ending, expect_s)

    def settle(self, branch: str, ending: Ending, expect_s: float | None) -> None:
        self.order.settle(branch, self.now_s, ending, expect_s)
        self.model.settle(branch, self.now_s, ending, expect_s)

    @rule(branch=st.sampled_from("abcx"))
    def end(self, branch: str) -> None:
        self.order.end(branch, self.now_s)
        self.model.branches.pop(branch, None)

    @rule(
        leaf=st.integers(0, 24),
        skip=st.integers(0, 4),
        ref_class=st.sampled_from(RefClass),
        late=st.sampled_from([0, 0, 0, 1, 5]),
    )
    def classify(self, leaf: int, skip: int, ref_class: RefClass, late: int) -> None:
        self.epoch += 1
        keys = ancestry(leaf)[skip:]
        epoch = max(0, self.epoch - late)
        applied = self.order.classify(epoch, keys, ref_class)
        assert applied == self.model.classify(epoch, keys, ref_class)

    @rule(choice=CHOICES)
    def pin(self, choice: int) -> None:
        if self.model.held:
            key = self.some(list(self.model.held), choice)
            self.order.pin(key)
            self.model.held[key].pins += 1

    @rule(choice=CHOICES)
    def unpin(self, choice: int) -> None:
        pinned = [key for key, block in self.model.held.items() if block.pins]
        if pinned:
            key = self.some(pinned, choice)
            self.order.unpin(key)
            self.model.held[key].pins -= 1

    @rule(choice=CHOICES)
    def remove(self, choice: int) -> None:
        if self.model.held:
            key = self.some(list(self.model.held), choice)
            self.order.remove(key)
            self.model.drop(key)

    @rule(need=st.sampled_from([0, 1, 1, 1, 2, 2, 5, 1000]))
    def evict(self, need: int) -> None:
        left = need
        for key in self.order.victims(need, self.now_s):
            assert left > 0, "more was given up than needed"
            self.one_goes(key)
            left -= self.model.held[key].blocks
            self.model.drop(key)
        assert left <= 0 or not self.model.evictable()

    def one_goes(self, key: int) -> None:
        model = self.model
        block = model.held[key]
        assert not block.pins
        others = [other for other in model.evictable() if other != key]
        if self.order.by_class:
            assert all(model.held[other].ref_class >= block.ref_class for other in others)
        if self.order.suffix_first:
            deeper = [o for o in others if key in ancestry(o)]
            assert not any(
                model.held[o].ref_class is block.ref_class and self.as_recent(key, o)
                for o in deeper
            )
        if self.exact:
            assert key == getattr(model, self.exact)(self.now_s)

    def as_recent(self, ancestor: int, descendant: int) -> bool:
        """A removed ancestor may have come back without its descendants: then it is older."""
        held = self.model.held
        return held[descendant].stamp <= held[ancestor].stamp and not any(
            key not in held for key in ancestry(descendant)
        )

    @invariant()
    def books_balance(self) -> None:
        assert self.order.check() == []
        assert self.order.total_blocks == sum(b.blocks for b in self.model.held.values())
        assert all(key in self.order for key in self.model.held)


def fixed_future(key: object) -> float:
    """Some order of next uses in which an ancestor never comes after its descendants."""
    assert isinstance(key, int)
    return float(len(ancestry(key)) * 10 + key % 7)


CASES: dict[str, Callable[[], EvictionOrder]] = {
    **{name: lambda name=name: make_order(name, POOL_BLOCKS) for name in ORDERS},  # type: ignore[misc]
    "expected, exact": lambda: ExpectedUse(rerank_s=0),
    "belady": lambda: Belady(fixed_future),
}
EXACT = {"lru": "lru", "paper": "paper", "expected, exact": "expected"}


@pytest.mark.parametrize("name", CASES)
def test_every_order_keeps_the_contract(name: str) -> None:
    machine = type("Machine", (OrderMachine,), {"exact": EXACT.get(name, "")})
    machine.make = staticmethod(CASES[name])
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=60,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("name", CASES)
def test_it_refuses_what_makes_no_sense(name: str) -> None:
    order = CASES[name]()
    order.insert(1, 0)
    for wrong in (
        lambda: order.insert(1, 0),
        lambda: order.insert(2, 0, 0),
        lambda: order.unpin(1),
    ):
        with pytest.raises(ValueError):
            wrong()
    for unknown in (order.pin, order.unpin, order.remove):
        with pytest.raises(KeyError):
            unknown(9)
    order.access("b", [9], 0.0)
    order.settle("nobody", 0.0)
    order.end("nobody", 0.0)
    assert order.classify(1, [9], RefClass.UNREFERENCED) == 0
    assert order.victims(0, 0.0) == []
    assert order.victims(5, 0.0) == [1]
    assert order.check() == []


def lines_run(work: Callable[[], object]) -> int:
    """Lines of Python that `work` runs: a measure of cost that no machine's load changes."""
    count = 0

    def trace(frame: object, event: str, argument: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("name", CASES)
def test_the_cost_of_a_victim_does_not_grow_with_the_pool(name: str) -> None:
    costs = []
    for blocks in (1_000, 10_000):
        order = make_order(name, blocks) if name in ORDERS else CASES[name]()
        for branch in range(10):
            path = list(range(branch * blocks, branch * blocks + blocks // 10))
            for depth, key in enumerate(path):
                order.insert(key, depth)
            order.access(branch, path, float(branch))
            order.settle(branch, float(branch))
        order.victims(1, 20.0)  # what has changed since the last one is paid for by the changes
        costs.append(lines_run(lambda order=order: [order.victims(1, 20.0) for _ in range(50)]))
    assert costs[1] < 1.5 * costs[0]
