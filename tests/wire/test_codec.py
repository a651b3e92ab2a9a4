"""Frames: what goes in comes out, and anything else is a WireError with a reason."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evctl.core.errors import EvctlError
from evctl.core.sampling import SamplingParams
from evctl.wire import (
    MAX_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    WireError,
    codec,
    decode,
    encode,
    encode_refused,
)
from evctl.wire.messages import (
    CancelRequest,
    GetInventory,
    Hello,
    Ping,
    Refused,
    StartRequest,
    Tokens,
)

from .strategies import MESSAGE_TYPES, messages, structs

RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def frame_of(body: object, version: int = PROTOCOL_VERSION, magic: bytes = b"EV") -> bytes:
    packed = body if isinstance(body, bytes) else msgspec.msgpack.encode(body)
    return struct.pack(">2sH", magic, version) + packed


def refusal(frame: bytes) -> WireError:
    with pytest.raises(WireError) as caught:
        decode(frame)
    return caught.value


@pytest.mark.parametrize("kind", MESSAGE_TYPES, ids=lambda t: t.__name__)
@given(data=st.data())
@settings(RELAXED, max_examples=40)
def test_every_message_survives_the_trip(kind: type[Any], data: st.DataObject) -> None:
    message = data.draw(structs(kind))
    for frame in (encode(message), memoryview(encode(message)), bytearray(encode(message))):
        again = decode(frame)
        assert type(again) is kind
        assert again == message
    assert encode(again) == encode(message)


@given(message=messages)
@settings(RELAXED, max_examples=60)
def test_every_truncation_is_refused(message: Any) -> None:
    frame = encode(message)
    for end in range(len(frame)):
        error = refusal(frame[:end])
        assert error.reason == ("too_short" if end <= 4 else "truncated")
        assert error.code == codec.CODES[error.reason]


@given(message=messages, extra=st.binary(min_size=1, max_size=8))
@settings(RELAXED)
def test_trailing_bytes_are_refused(message: Any, extra: bytes) -> None:
    assert refusal(encode(message) + extra).reason == "trailing_bytes"


@given(st.binary(max_size=200))
@settings(RELAXED, max_examples=300)
def test_random_bytes_raise_wire_errors_only(junk: bytes) -> None:
    for frame in (junk, frame_of(junk), frame_of(junk, version=9)):
        try:
            decode(frame)
        except WireError as error:
            assert error.reason in codec.CODES


@given(message=messages, data=st.data())
@settings(RELAXED, max_examples=300)
def test_flipped_bytes_raise_wire_errors_only(message: Any, data: st.DataObject) -> None:
    frame = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(frame)
    except WireError as error:
        assert error.reason in codec.CODES


@pytest.mark.parametrize(("version", "reason"), [(1, "old_version"), (3, "new_version")])
def test_other_versions_are_named(version: int, reason: str) -> None:
    error = refusal(frame_of({"t": "Ping", "anything": 1}, version))
    assert error.reason == reason
    assert error.version == version
    assert f"protocol {version}" in error.why
    assert f"protocol {PROTOCOL_VERSION}" in error.why
    assert isinstance(error, EvctlError)
    assert error.next_step


@pytest.mark.parametrize("version", [0, 1, 2, 65535])
def test_refusals_are_readable_under_every_version(version: int) -> None:
    frame = encode_refused("EV-3003", "too old", "r1", version=version)
    assert decode(frame) == Refused("EV-3003", "too old", "r1")
    grown = {"t": "Refused", "code": "EV-3999", "reason": "why", "since": "version 7"}
    assert decode(frame_of(grown, version)) == Refused("EV-3999", "why")


@given(st.text(), st.text(max_size=2000), st.text())
def test_refusals_take_any_text(code: str, reason: str, request_id: str) -> None:
    read = decode(encode_refused(code, reason + "\ud800", request_id))
    assert isinstance(read, Refused)
    assert (read.code, read.request_id) == (code, request_id)
    assert read.reason[: codec.MAX_REASON_CHARS] == (reason + "?")[: codec.MAX_REASON_CHARS]


START = {
    "t": "StartRequest",
    "request_id": "r1",
    "tenant": "t",
    "branch": "b",
    "generation": 0,
    "epoch": 1,
    "prompt": [1],
    "root_key": b"k",
    "block_keys": b"",
    "prefill_node": "n",
    "decode_node": "n",
}


@pytest.mark.parametrize(
    ("sampling", "part"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"max_tokens": 1, "top_p": 0.0}, "top_p must be in (0, 1]"),
        ({"max_tokens": 1, "temperature": float("nan")}, "temperature must be in 0..100"),
        ({"max_tokens": 1, "seed": 2**63}, "seed must fit in 64 bits"),
        ({"max_tokens": "1"}, "Expected `int`, got `str`"),
        ({}, "missing required field `max_tokens`"),
    ],
)
def test_fields_out_of_range_are_refused_with_the_request(
    sampling: dict[str, object], part: str
) -> None:
    error = refusal(frame_of(START | {"sampling": sampling}))
    assert (error.reason, error.request_id) == ("bad_field", "r1")
    assert part in error.why
    assert "StartRequest" in error.why


def test_a_layout_that_cannot_be_is_refused() -> None:
    hello = structs(Hello).map(msgspec.to_builtins)

    @given(hello, st.sampled_from([{"dtype": "int7"}, {"block_tokens": 0}, {"planes": -1}]))
    @settings(RELAXED, max_examples=5)
    def check(body: dict[str, Any], change: dict[str, object]) -> None:
        body["peer"]["public_key"] = b""
        body["layout"] |= change
        assert refusal(frame_of(body)).reason == "bad_field"

    check()


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "too_short"),
        (b"EV\x00\x02", "too_short"),
        (frame_of({"t": "Stop"}, magic=b"GE"), "wrong_magic"),
        (frame_of({"t": "Warp", "request_id": "r9"}), "unknown_type"),
        (frame_of({"t": "PrefillStarted"}), "unknown_type"),
        (frame_of({"drain": True}), "unknown_type"),
        (frame_of({"t": 5}), "bad_field"),
        (frame_of([1, 2]), "bad_field"),
        (frame_of(b"\xc1"), "malformed"),
        (frame_of({"t": "GetInventory", "ticket": 1.5}), "bad_field"),
        (frame_of(b"\x82\xa1t\xa4Stop\xa2zz" + b"\x91" * 1_000_000 + b"\xc0"), "malformed"),
        (frame_of(b"\x82\xa1t\xa6Tokens\xa9token_ids\xdd\xff\xff\xff\xff"), "truncated"),
    ],
)
def test_each_fault_has_its_reason(frame: bytes, reason: str) -> None:
    assert refusal(frame).reason == reason


def test_unknown_fields_are_skipped() -> None:
    grown = {"t": "CancelRequest", "request_id": "r1", "since": {"later": [1, 2]}}
    assert decode(frame_of(grown)) == CancelRequest("r1")


def test_size_limit_holds_both_ways() -> None:
    room = MAX_MESSAGE_BYTES - len(encode(CancelRequest("x" * 2**16))) + 2**16
    assert len(encode(CancelRequest("x" * room))) == MAX_MESSAGE_BYTES
    assert decode(encode(CancelRequest("x" * room))) == CancelRequest("x" * room)
    with pytest.raises(WireError) as caught:
        encode(CancelRequest("x" * (room + 1)))
    assert caught.value.reason == "too_large"
    assert refusal(frame_of({"t": "Stop"}) + bytes(MAX_MESSAGE_BYTES)).reason == "too_large"


@pytest.mark.parametrize("message", [GetInventory(2**64), Ping("\ud800", "b", 1)])
def test_values_without_a_form_are_refused_when_sent(message: Any) -> None:
    with pytest.raises(WireError) as caught:
        encode(message)
    assert caught.value.reason == "unencodable"


def test_a_long_prompt_fits() -> None:
    start = StartRequest(
        request_id="r1", tenant="t", branch="b", generation=0, epoch=1,
        prompt=tuple(range(1_000_000)), root_key=bytes(16), block_keys=bytes(16 * 15_625),
        sampling=SamplingParams(max_tokens=1), prefill_node="n", decode_node="n",
    )  # fmt: skip
    assert decode(encode(start)) == start


def test_a_request_of_a_control_plane_that_tells_no_wait_has_waited_for_nothing() -> None:
    start = StartRequest(
        request_id="r1", tenant="t", branch="b", generation=0, epoch=1, prompt=(1,),
        root_key=bytes(16), block_keys=b"", sampling=SamplingParams(max_tokens=1),
        prefill_node="n", decode_node="n", waited_s=2.5,
    )  # fmt: skip
    assert decode(encode(start)) == start
    said = msgspec.to_builtins(start, builtin_types=(bytes,))
    del said["waited_s"]
    older = decode(frame_of(said))
    assert isinstance(older, StartRequest)
    assert older.waited_s == 0.0


def test_refused_is_an_ordinary_message_too() -> None:
    assert encode(Refused("EV-3001", "why")) == encode_refused("EV-3001", "why")
    assert encode(Tokens("r", 0, (1,)))[:4] == b"EV\x00\x02"
