"""Messages to frames and back.

A frame is `b"EV"`, the protocol version as unsigned 16 bit big-endian, and one msgpack map
whose key `t` names the message type. Unknown keys are skipped, so that fields may be added
within a version.

Refusals are the one thing that both sides of a version mismatch must understand. Their
layout is fixed for all versions, past and future: the same four-byte header (any version),
then a msgpack map with the text values `t` = "Refused", `code`, `reason` and, optionally,
`request_id`; further keys are to be ignored.
"""

from __future__ import annotations

import struct
from typing import Final, Literal, NoReturn, get_args

import msgspec

from evctl.core.errors import EvctlError
from evctl.wire.messages import AnyMessage, Refused

PROTOCOL_VERSION: Final = 2
MAGIC: Final = b"EV"
MAX_MESSAGE_BYTES: Final = 16 * 2**20
"""Largest frame, header included, that is sent or accepted."""
MAX_REASON_CHARS: Final = 500

Buffer = bytes | bytearray | memoryview

_HEADER: Final = struct.Struct(">2sH")
_OUR_HEADER: Final = _HEADER.pack(MAGIC, PROTOCOL_VERSION)
_TYPE_NAMES: Final = frozenset(t.__name__ for t in get_args(AnyMessage))

CODES: Final = {
    "too_short": "EV-3001",
    "wrong_magic": "EV-3002",
    "old_version": "EV-3003",
    "new_version": "EV-3004",
    "truncated": "EV-3005",
    "malformed": "EV-3006",
    "unknown_type": "EV-3007",
    "bad_field": "EV-3008",
    "trailing_bytes": "EV-3009",
    "too_large": "EV-3010",
    "unencodable": "EV-3011",
    "bad_envelope": "EV-3012",
    "key_revoked": "EV-3013",
}
"""Error code of each reason for which a message is refused."""

_NEXT_STEPS: Final = {
    "old_version": "update evctl on the sending side to the receiver's version",
    "new_version": "update evctl on the receiving side to the sender's version",
    "too_large": "send fewer tokens or blocks in one message",
    "unencodable": "find the value that does not fit a field in the message that was sent",
    "key_revoked": "run `evctl up` to give the sender a key of this cluster",
}
_NEXT_STEP: Final = "check in the sender's log that it is an evctl of the same version"


class WireError(EvctlError):
    """A frame that is not accepted, or a message that cannot be sent.

    reason: stable word, a key of CODES; sockets count by it. version: the one the frame
    names, ours where it names none. request_id: of the message, where it could be read.
    """

    def __init__(
        self, reason: str, why: str, *, version: int = PROTOCOL_VERSION, request_id: str = ""
    ) -> None:
        super().__init__(
            what="a wire message was refused",
            why=why,
            next_step=_NEXT_STEPS.get(reason, _NEXT_STEP),
            code=CODES[reason],
        )
        self.reason = reason
        self.version = version
        self.request_id = request_id


class _Refusal(msgspec.Struct):
    """The layout of a refusal under any version."""

    t: Literal["Refused"]
    code: str
    reason: str
    request_id: str = ""


class _Envelope(msgspec.Struct):
    """What can be told about a message that does not decode."""

    t: str = ""
    request_id: str = ""


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)
_refusal_decoder = msgspec.msgpack.Decoder(_Refusal)
_envelope_decoder = msgspec.msgpack.Decoder(_Envelope)


def encode(message: AnyMessage) -> bytes:
    """The frame of `message`.

    Raises WireError: too_large over MAX_MESSAGE_BYTES, unencodable when a value has no
    msgpack form (an integer over 64 bits, a lone surrogate in a text).
    """
    frame = bytearray(_OUR_HEADER)
    try:
        _encoder.encode_into(message, frame, len(frame))
    except (OverflowError, ValueError, TypeError, RecursionError) as error:
        raise WireError("unencodable", f"{type(message).__name__}: {error}") from error
    if len(frame) > MAX_MESSAGE_BYTES:
        _refuse_size(len(frame), getattr(message, "request_id", ""))
    return bytes(frame)


def encode_refused(
    code: str, reason: str, request_id: str = "", *, version: int = PROTOCOL_VERSION
) -> bytes:
    """Frame of a Refused for a peer that speaks `version`; readable under every version.

    A reason over MAX_REASON_CHARS is cut. Never raises for any text.
    """
    texts = (code, reason[:MAX_REASON_CHARS], request_id)
    clean = (t.encode("utf-8", "replace").decode() for t in texts)
    return _HEADER.pack(MAGIC, version) + _encoder.encode(Refused(*clean))


def decode(frame: Buffer) -> AnyMessage:
    """The message in `frame`. Raises WireError, and nothing else, on any other bytes."""
    size = len(frame)
    if size > MAX_MESSAGE_BYTES:
        _refuse_size(size)
    if size <= _HEADER.size:
        raise WireError("too_short", f"{size} bytes are less than a header and a body")
    magic, version = _HEADER.unpack_from(frame)
    body = memoryview(frame)[_HEADER.size :]
    if magic != MAGIC:
        raise WireError("wrong_magic", f"a frame starts with {MAGIC!r}, this one with {magic!r}")
    if version != PROTOCOL_VERSION:
        return _foreign_refusal(version, body)
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _explain(error, body) from error


def _refuse_size(size: int, request_id: str = "") -> NoReturn:
    why = f"{size} bytes exceed the limit of {MAX_MESSAGE_BYTES} bytes for one message"
    raise WireError("too_large", why, request_id=request_id)


def _foreign_refusal(version: int, body: memoryview) -> Refused:
    """The Refused in `body`; WireError when a frame of another version holds anything else."""
    try:
        refusal = _refusal_decoder.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        reason = "old_version" if version < PROTOCOL_VERSION else "new_version"
        why = f"the sender speaks protocol {version}, the receiver protocol {PROTOCOL_VERSION}"
        raise WireError(reason, why, version=version) from None
    return Refused(refusal.code, refusal.reason, refusal.request_id)


def _explain(error: Exception, body: memoryview) -> WireError:
    """The WireError for what msgspec raised about `body`."""
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        if "trailing" in text:
            return WireError("trailing_bytes", text)
        return WireError("truncated" if "truncated" in text else "malformed", text)
    try:
        envelope = _envelope_decoder.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return WireError("bad_field", text)
    if envelope.t not in _TYPE_NAMES:
        why = f"{envelope.t[:40]!r} is not a message of protocol {PROTOCOL_VERSION}"
        return WireError("unknown_type", why, request_id=envelope.request_id)
    return WireError("bad_field", f"{envelope.t}: {text}", request_id=envelope.request_id)
