"""KvStored facts as the wire carries them: the one place of this bench that knows the codec."""

from __future__ import annotations

from evctl.core.events import KvStored
from evctl.wire.codec import decode, encode
from evctl.wire.messages import Facts

__all__ = ["decode", "frame", "stored_facts"]


def frame(node: str, boot_id: str, facts: list[KvStored]) -> bytes:
    """The bytes that an engine sends."""
    return encode(Facts(node, boot_id, 1, tuple(facts)))


def stored_facts(data: bytes) -> Facts:
    """What the control plane makes of those bytes."""
    message = decode(data)
    assert isinstance(message, Facts)
    return message
