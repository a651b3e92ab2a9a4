"""Order, gaps, repeats and bounds of one request's tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evctl.control.frontdoor import InferenceRequest, OverloadedError
from evctl.control.streams import MAX_BUFFERED_TOKENS, MAX_HELD_MESSAGES, Streams, merge
from evctl.core.sampling import SamplingParams
from evctl.wire.messages import Tokens


class Desk:
    """Streams with a clock of the test."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.given_up: list[str] = []
        self.streams = Streams(lambda: self.now_s, self.given_up.append, lambda *_: None)
        request = InferenceRequest("r", "t", (1,), b"", b"", SamplingParams(max_tokens=9))
        self.stream = self.streams.open(request)
        self.streams.dispatched("r", ("a", "b"))

    def tokens(self, node: str, start: int, *ids: int, finish: str | None = None) -> bool:
        return self.streams.on_tokens(node, Tokens("r", start, ids, finish=finish))


@given(
    st.permutations(range(6)),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=8),
)
async def test_any_order_with_any_repeats_gives_the_output(
    order: list[int], repeats: list[tuple[int, int]]
) -> None:
    desk = Desk()
    whole = tuple(range(100, 112))
    messages = [(2 * i, whole[2 * i : 2 * i + 2], "length" if i == 5 else None) for i in order]
    messages[3:3] = [(2 * s, whole[2 * s : 2 * s + n], None) for s, n in repeats]
    for start, ids, finish in messages:
        desk.tokens("a", start, *ids, finish=finish)
    message = await desk.stream.read()
    assert message.token_ids == whole
    assert (message.start, message.finish) == (0, "length")
    assert desk.given_up == []


async def test_a_gap_that_stays_ends_the_request() -> None:
    desk = Desk()
    desk.tokens("a", 0, 1)
    desk.tokens("b", 2, 3)
    desk.now_s = 4.9
    desk.streams.sweep()
    assert not desk.stream.ended
    desk.now_s = 5.1
    desk.streams.sweep()
    message = await desk.stream.read()
    assert (message.token_ids, message.finish) == ((1,), "error")
    assert desk.given_up == ["r"]


async def test_an_end_without_its_last_tokens_ends_too() -> None:
    desk = Desk()
    desk.tokens("a", 0, 1)
    desk.streams.done("r")
    desk.now_s = 6.0
    desk.streams.sweep()
    assert (await desk.stream.read()).finish == "error"


async def test_bounds_of_what_waits() -> None:
    desk = Desk()
    for index in range(MAX_HELD_MESSAGES + 1):
        desk.tokens("a", index + 5, 1)
    assert desk.stream.ended
    slow = Desk()
    slow.tokens("a", 0, *range(MAX_BUFFERED_TOKENS + 1))
    assert slow.given_up == ["r"]
    assert (await slow.stream.read()).error == "its reader does not take the tokens"


async def test_strangers_are_named_once() -> None:
    desk = Desk()
    other = Tokens("x", 0, (1,))
    assert not desk.streams.on_tokens("a", other)
    assert desk.streams.on_tokens("a", other)
    desk.tokens("c", 0, 5)
    assert desk.stream.received == 0
    desk.streams.close("r")
    assert desk.tokens("a", 0, 1), "stragglers of a closed stream need no answer"
    with pytest.raises(ValueError, match="in use"):
        Desk().streams.open(desk.stream.request)


async def test_a_rejection_is_raised() -> None:
    desk = Desk()
    desk.streams.reject("r", "too much", 3.0)
    with pytest.raises(OverloadedError) as caught:
        await desk.stream.read()
    assert caught.value.retry_after_s == 3.0


def test_merging_keeps_the_ends() -> None:
    merged = merge([Tokens("r", 2, (1,), cached_tokens=4), Tokens("r", 3, (2, 3), finish="stop")])
    assert merged == Tokens("r", 2, (1, 2, 3), finish="stop", cached_tokens=4)
