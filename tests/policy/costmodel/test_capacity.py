"""Capacity: section 5's formulas, worked by hand and as properties."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evctl.core.costs import Coefficients
from evctl.core.planning import SliceRecord
from evctl.policy.capacity import (
    NodeCapacity,
    largest_batch,
    node_decode_rate,
    node_prefill_rate,
    theta,
)

MODEL = Coefficients(0.010, 1e-4, 1e-8, 2e-6, 0.020, 0.0, 0.001)
SLICE = SliceRecord(
    start_s=0.0,
    end_s=60.0,
    arrivals=60,
    completions=60,
    uncached_tokens=1000.0,
    cached_tokens=3000.0,
    attention_pairs=5e6,
    restored_tokens=500.0,
    output_tokens=200.0,
    accepted_per_iteration=2.0,
    tokens_per_iteration=500.0,
    in_flight=30.0,
    decode_queue=0.0,
    prefill_queue=0.0,
)
NODE = NodeCapacity("n", MODEL, max_running=16, l1_tokens=84_000)


def slow(node: NodeCapacity, factor: float) -> NodeCapacity:
    c = node.coefficients
    terms = {t: factor * getattr(c, t) for t in c.__struct_fields__ if t[-2:] == "_s"}
    return msgspec.structs.replace(node, coefficients=msgspec.structs.replace(c, **terms))


def test_prefill_rate_by_hand() -> None:
    # two iterations' fixed cost, tokens, pairs, restores
    t_p = 2 * 0.010 + 0.1 + 0.05 + 0.001
    assert node_prefill_rate(MODEL, SLICE) == pytest.approx(1 / t_p)


def test_decode_rate_by_hand() -> None:
    assert node_decode_rate(MODEL, SLICE, 10.0) == pytest.approx(10 / (0.030 * 100))


def test_a_small_batch_is_a_node_idle_at_times() -> None:
    assert node_decode_rate(MODEL, SLICE, 0.5) == pytest.approx(0.5 / (0.021 * 100))
    assert node_decode_rate(MODEL, SLICE, 0.0) == 0.0


def test_batch_is_bounded_by_engine_and_by_memory() -> None:
    assert largest_batch(NODE, SLICE) == 16.0
    assert largest_batch(msgspec.structs.replace(NODE, l1_tokens=42_000), SLICE) == 10.0


def test_theta_is_the_slower_phase() -> None:
    prefill, decode = node_prefill_rate(MODEL, SLICE), node_decode_rate(MODEL, SLICE, 15.0)
    assert theta([NODE], [NODE, NODE], SLICE) == pytest.approx(min(prefill, 2 * decode))
    many = [NODE] * 30
    assert theta(many, [NODE], SLICE) == pytest.approx(node_decode_rate(MODEL, SLICE, 16.0))
    assert theta([], [NODE], SLICE) == theta([NODE], [], SLICE) == 0.0


def test_nodes_of_different_speed_add_up() -> None:
    other = slow(NODE, 3.0)
    both = theta([NODE, other], [NODE] * 40, msgspec.structs.replace(SLICE, in_flight=640.0))
    assert both == pytest.approx(4 / 3 * node_prefill_rate(MODEL, SLICE))


def test_an_unsaturated_decode_side_can_still_grow_prefill() -> None:
    """Requests that wait for prefill count as what decode could hold: Theta of a split with
    another prefill node is higher, although decode has nothing queued."""
    heavy = msgspec.structs.replace(SLICE, uncached_tokens=20_000.0, in_flight=40.0)
    nodes = [NODE] * 9
    assert theta(nodes[:7], nodes[7:], heavy) > theta(nodes[:6], nodes[6:], heavy)


def test_requests_without_output_need_no_decode() -> None:
    none = msgspec.structs.replace(SLICE, output_tokens=0.0)
    assert math.isinf(node_decode_rate(MODEL, none, 4.0))
    assert theta([NODE], [NODE], none) == node_prefill_rate(MODEL, none)


@given(st.floats(1.1, 10.0), st.integers(1, 6), st.integers(1, 6), st.floats(0.5, 500.0))
def test_a_cluster_of_slower_nodes_is_slower_by_as_much(
    factor: float, prefill: int, decode: int, in_flight: float
) -> None:
    load = msgspec.structs.replace(SLICE, in_flight=in_flight)
    fast = theta([NODE] * prefill, [NODE] * decode, load)
    slower = slow(NODE, factor)
    assert theta([slower] * prefill, [slower] * decode, load) == pytest.approx(fast / factor)
