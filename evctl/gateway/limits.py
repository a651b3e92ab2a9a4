"""How much one client, and all of them together, may ask for."""

from __future__ import annotations

import msgspec


class GatewayLimits(msgspec.Struct, frozen=True):
    """Bounds of the gateway; whoever crosses one gets a 4xx that names it.

    max_body_bytes: a longer body is refused (413) before it is read whole. max_nesting: levels
    of the client's own JSON, in tools and tool calls. max_in_flight and
    max_held_body_bytes: of all requests together, beyond them 429 with retry_after_s.
    body_timeout_s: for a body to arrive (408). send_timeout_s: a client that takes nothing for
    this long counts as gone. close_timeout_s: for a cancelled request to be let go of.
    tokenizer_threads: for short bodies, and as many again for those of long_body_bytes or more,
    behind which a short one never waits.
    default_max_tokens: the output of a request that names no limit, if the context has room.
    """

    max_body_bytes: int = 8 << 20
    max_messages: int = 10_000
    max_nesting: int = 64
    max_stop_chars: int = 256
    max_in_flight: int = 1_024
    max_held_body_bytes: int = 256 << 20
    default_max_tokens: int = 1_024
    tokenizer_threads: int = 2
    long_body_bytes: int = 128 << 10
    body_timeout_s: float = 60.0
    send_timeout_s: float = 60.0
    close_timeout_s: float = 5.0
    retry_after_s: float = 1.0
