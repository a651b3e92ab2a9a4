"""Messages between control plane and engines, and between engines; sockets that carry them."""

from evctl.wire.channel import CONTROL_LIMITS, Received, SocketLimits
from evctl.wire.codec import (
    MAX_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    WireError,
    decode,
    encode,
    encode_refused,
)
from evctl.wire.keys import (
    KeyPair,
    KeyRing,
    from_z85,
    generate_keypair,
    keypair_of,
    load_keypair,
    save_keypair,
    to_z85,
)
from evctl.wire.sockets import Dialer, Listener

__all__ = [
    "CONTROL_LIMITS",
    "MAX_MESSAGE_BYTES",
    "PROTOCOL_VERSION",
    "Dialer",
    "KeyPair",
    "KeyRing",
    "Listener",
    "Received",
    "SocketLimits",
    "WireError",
    "decode",
    "encode",
    "encode_refused",
    "from_z85",
    "generate_keypair",
    "keypair_of",
    "load_keypair",
    "save_keypair",
    "to_z85",
]
