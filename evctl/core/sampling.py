"""How the next token is chosen."""

from __future__ import annotations

import msgspec

MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256
"""Each stop string; the text of that many characters is decoded again for every token."""
MAX_LOGPROBS = 20


class SamplingParams(msgspec.Struct, frozen=True):
    """Sampling of one request. temperature 0 is greedy. Raises ValueError when out of range.

    stop_token_ids end the output without being part of the text; `forced` are token ids to
    emit instead of the sampled ones (replay of a recorded trace); their KV is computed all
    the same. logprobs: how many alternatives to report, None for none at all.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    forced: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if not 0.0 <= self.temperature <= 100.0:
            raise ValueError(f"temperature must be in 0..100, not {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], not {self.top_p}")
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise ValueError("seed must fit in 64 bits")
        if len(self.stop) > MAX_STOP_STRINGS or any(not s for s in self.stop):
            raise ValueError(f"stop takes up to {MAX_STOP_STRINGS} non-empty strings")
        if any(len(s) > MAX_STOP_CHARS for s in self.stop):
            raise ValueError(f"a stop string has up to {MAX_STOP_CHARS} characters")
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise ValueError(f"logprobs must be in 0..{MAX_LOGPROBS}, not {self.logprobs}")


class FinishReason:
    """Why an output ended; the values travel on the wire."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of an emitted token, and of the most likely alternatives (id, logprob)."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
