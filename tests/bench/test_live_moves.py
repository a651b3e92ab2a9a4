"""What a live bench says of moves: how far a forecast was off, and whether a planner wavers."""

from __future__ import annotations

from itertools import pairwise

import pytest

from evctl.bench.live.adapt import Adaptation
from evctl.bench.live.closed import DECODE_HEAVY, PREFILL_HEAVY, Seen, closed_trace
from evctl.bench.live.moves import Outcome, error_of, within
from evctl.core.planning import Forecast
from evctl.trace.schema import problems


def outcome(rps: float, ttft_s: float | None, e2e_s: float | None, slower: float) -> Outcome:
    seen = Seen(100, 0, 10.0, 0.5, 2.0)
    return Outcome("s", "2P1D", True, Forecast(rps, ttft_s, e2e_s), slower, seen)


def test_errors_are_relative_to_what_was_seen() -> None:
    error = error_of(outcome(11.0, 0.4, 2.0, 15.0))
    assert error.throughput == pytest.approx(0.1)
    assert error.ttft == pytest.approx(-0.2)
    assert error.e2e == pytest.approx(0.0)
    assert error.slower_phase == pytest.approx(0.5)
    assert error.worst == pytest.approx(0.2)


def test_what_is_not_forecast_is_no_error_and_one_miss_is_one() -> None:
    assert error_of(outcome(10.0, None, 2.0, 10.0)).ttft is None
    good, bad = outcome(10.0, 0.5, 2.0, 10.0), outcome(10.0, 0.7, 2.0, 10.0)
    assert within([good, bad, good], 0.2) == 2


def adaptation(*moves: tuple[float, str]) -> Adaptation:
    return Adaptation("s", 30.0, [], list(moves))


@pytest.mark.parametrize(
    ("moves", "went", "returns"),
    [
        ([(0.0, "1P3D")], 0, 0),
        ([(0.0, "1P3D"), (30.0, "2P2D"), (60.0, "3P1D")], 2, 0),
        ([(0.0, "1P3D"), (30.0, "3P1D"), (60.0, "2P2D")], 1, 1),
        ([(0.0, "1P3D"), (30.0, "3P1D"), (121.0, "2P2D")], 1, 0),
        ([(0.0, "2P2D"), (30.0, "1P3D"), (40.0, "2P2D"), (50.0, "1P3D")], -1, 2),
    ],
    ids=["none", "one way", "back", "back much later", "to and fro"],
)
def test_moves_back_are_counted(moves: list[tuple[float, str]], went: int, returns: int) -> None:
    found = adaptation(*moves)
    assert (found.went(), found.returns()) == (went, returns)


@pytest.mark.parametrize("shape", [PREFILL_HEAVY, DECODE_HEAVY], ids=lambda s: s.name)
def test_closed_loads_are_traces_that_mean_what_they_say(shape: object) -> None:
    assert isinstance(shape, type(PREFILL_HEAVY))
    trace = closed_trace(shape, 400, 4, 1)
    assert trace.conversations == closed_trace(shape, 400, 4, 1).conversations
    assert trace.conversations != closed_trace(shape, 400, 4, 2).conversations
    assert not [p for c in trace.conversations for p in problems(c, 4)]
    grown, output = [], []
    for conversation in trace.conversations:
        requests = conversation.root.requests
        assert len(requests) == shape.turns
        output += [request.out_tokens for request in requests]
        grown += [
            after.in_tokens - before.in_tokens - before.out_tokens
            for before, after in pairwise(requests)
        ]
    assert sum(grown) / len(grown) == pytest.approx(shape.new_tokens + 1, rel=0.1)
    assert sum(output) / len(output) == pytest.approx(shape.output_tokens + 1, rel=0.1)
