"""Shortest remaining prefill first: the order itself, and that it changes no token."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from evctl.core.events import FirstToken, IterationSample
from evctl.core.kv import FetchPiece
from evctl.core.sampling import SamplingParams
from evctl.core.split import Phase
from evctl.policy.order import rank_s
from evctl.wire.messages import StartRequest
from evengine.blockstore import BlockStore
from evengine.order import PrefillOrder
from evengine.request import Sequence, Stage
from tests.engine.driver import Driver
from tests.engine.paths import Paths, assert_same

SIZE = 4


def sequence(
    name: str, tokens: int, received_s: float, computed: int = 0, waited_s: float = 0.0
) -> Sequence:
    keys = b"".join(bytes([i]) * 16 for i in range(tokens // SIZE))
    start = StartRequest(
        request_id=name,
        tenant="t",
        branch="",
        generation=0,
        epoch=1,
        prompt=tuple(range(tokens)),
        root_key=b"",
        block_keys=keys,
        sampling=SamplingParams(max_tokens=1),
        prefill_node="a",
        decode_node="a",
        fetch=(FetchPiece(2, 4, ("b",)),),
        waited_s=waited_s,
    )
    seq = Sequence(start, b"", SIZE, received_s)
    seq.computed = computed
    seq.stage = Stage.PREFILL
    return seq


def order_of(held_blocks: int = 0, *, shortest_first: bool = True, ageing: float = 0.1):  # type: ignore[no-untyped-def]
    """An order that knows what a token takes: 10 ms."""
    store = SimpleNamespace(
        layout=SimpleNamespace(block_tokens=SIZE),
        leading=lambda keys, fetch: min(len(keys), held_blocks + 2 * len(fetch)),
    )
    order = PrefillOrder(store, shortest_first=shortest_first, ageing=ageing)  # type: ignore[arg-type]
    order.observe(IterationSample(Phase.PREFILL, 1.0, 100, 1.0, 0, 0))
    order.observe(IterationSample(Phase.PREFILL, 9.0, 100, 1.0, 0, 3))
    return order


def names(found: list[Sequence]) -> list[str]:
    return [seq.request_id for seq in found]


def test_what_is_left_decides_and_waiting_counts() -> None:
    seqs = [
        sequence("long", 200, 0.0),
        sequence("begun", 200, 0.0, computed=190),
        sequence("short", 40, 0.0),
        sequence("shorter, later", 30, 2.0),
    ]
    assert names(order_of().arranged(seqs)) == ["begun", "short", "shorter, later", "long"]
    by_age = order_of(ageing=100.0).arranged(seqs)
    assert names(by_age) == ["begun", "short", "long", "shorter, later"]
    assert names(order_of(shortest_first=False).arranged(seqs)) == names(seqs)


def test_what_waited_elsewhere_keeps_its_age_but_not_its_deadline() -> None:
    """100 tokens are a second of work here, and ten seconds of waiting weigh as much."""
    routed_again = sequence("routed again", 200, 30.0, waited_s=29.0)
    seqs = [sequence("short", 40, 20.0), routed_again, sequence("new", 200, 30.0)]
    assert names(order_of().arranged(seqs)) == ["routed again", "short", "new"]
    assert routed_again.deadline_s == 30.0 + routed_again.start.deadline_s
    fresh = [sequence("short", 40, 20.0), sequence("long", 200, 30.0)]
    assert names(order_of().arranged(fresh)) == ["short", "long"]


def test_engine_and_router_rank_alike() -> None:
    dice = random.Random(2)
    seqs = [sequence(f"s{i}", dice.randrange(1, 200), dice.uniform(0, 20)) for i in range(40)]
    expected = sorted(seqs, key=lambda s: rank_s(s.uncomputed_tokens, 0.01, 0.1, s.arrived_s))
    assert names(order_of().arranged(seqs)) == names(expected)


def test_a_waiting_prompt_counts_by_what_neither_cache_nor_peers_have() -> None:
    """What wrong code would pass? One that takes a long prompt that is cached for a long one."""
    cached, short = sequence("cached", 40, 0.0), sequence("short", 20, 0.0)
    cached.stage = short.stage = Stage.WAITING
    short.expected_tokens = 20
    assert order_of(held_blocks=7).first([short, cached]) is cached, "4 of 40 tokens are new"
    cached.forget_kv()
    assert order_of(held_blocks=0).first([short, cached]) is short, "32 of 40 are"


def test_work_before_a_request_is_of_those_that_can_run_and_come_first() -> None:
    late = sequence("late", 100, 9.0)
    late.stage = Stage.WAITING
    late.expected_tokens = 50
    long, short = sequence("long", 200, 0.0, computed=20), sequence("short", 30, 0.0)
    fetching = sequence("fetching", 40, 0.0)
    fetching.intake = SimpleNamespace()  # type: ignore[assignment]
    admitted = [long, fetching, short]
    by_arrival = order_of(shortest_first=False)
    assert by_arrival.ahead_tokens(late, admitted) == 210
    assert by_arrival.ahead_tokens(late, [fetching]) == 0, "it holds up nobody"
    assert order_of().ahead_tokens(late, admitted) == 30, "it overtakes the long one"


@pytest.mark.parametrize(
    ("l1", "l2", "pieces", "leading"),
    [
        ("012", "", (), 3),
        ("02", "1", (), 3),
        ("0", "", ((1, 3),), 3),
        ("03", "2", (), 1),
        ("1", None, ((2, 3),), 0),
        ("01234", None, ((1, 2),), 5),
    ],
)
def test_leading_blocks_are_of_any_tier_or_on_their_way(
    l1: str, l2: str | None, pieces: tuple[tuple[int, int], ...], leading: int
) -> None:
    def tier(held: str) -> SimpleNamespace:
        return SimpleNamespace(find=lambda key: key.decode() in held or None)

    store = SimpleNamespace(l1=tier(l1), pool=None if l2 is None else tier(l2))
    keys = [b"0", b"1", b"2", b"3", b"4"]
    fetched = [FetchPiece(start, end, ("b",)) for start, end in pieces]
    assert BlockStore.leading(store, keys, fetched) == leading  # type: ignore[arg-type]


def test_who_has_begun_to_answer_comes_first() -> None:
    preempted, short = sequence("preempted", 190, 5.0), sequence("short", 20, 0.0)
    preempted.output = [1]
    assert order_of().first([preempted, short]) is preempted
    assert names(order_of().arranged([short, preempted])) == ["preempted", "short"]
    assert order_of().first([]) is None


@pytest.mark.system
@pytest.mark.timeout(600)
def test_all_paths_give_the_same_tokens_shortest_first(tmp_path: Path, prepared_model) -> None:
    """The last path prefills on the node that decoded: as append on decode does, in iterations
    that decode as well. Small chunks, so that prompts overtake each other midway."""
    dice = random.Random(7)
    lengths = [700, 1, 300, 64, 17, 511, 16, 90]
    prompts = [[dice.randrange(256) for _ in range(length)] for length in lengths]
    limits = {"chunk_tokens": 64, "shortest_first": True, "prefill_ageing": 0.1}
    with Driver(tmp_path, prepared_model("random-4l256"), l1_blocks=1500, limits=limits) as driver:
        driver.settle()
        paths = Paths(driver, prompts)
        alone = [driver.run([p], prefill="a", tenant="alone", max_tokens=20)[0] for p in prompts]
        results = [paths.one_node(), paths.disaggregated(), paths.decoded_prefix()]
        assert_same(results)
        assert results[0].tokens == alone
        _overtakes(driver)
        for name in driver.nodes:
            assert driver.quiet(name).problems == ()


def _overtakes(driver: Driver) -> None:
    """A short prompt that comes after a long one answers before it."""
    long = driver.submit([5] * 1500, prefill="a", tenant="x", max_tokens=2)
    short = driver.submit([6] * 40, prefill="a", tenant="x", max_tokens=2)
    driver.wait([long, short])
    first = [f.request_id for _, f in driver.facts if isinstance(f, FirstToken)]
    assert first.index(short) < first.index(long)
