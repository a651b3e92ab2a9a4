"""Tokens to text as they come: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


def byte_of_character() -> dict[str, int]:
    """The byte for which each printable character stands in byte-level vocabularies (GPT-2)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in printable]
    shown = {chr(byte): byte for byte in printable}
    return shown | {chr(256 + index): byte for index, byte in enumerate(hidden)}


_BYTES = byte_of_character()


def token_bytes(token: str) -> bytes:
    """Bytes of one token as the byte-level decoder sees it: all mapped, or all as they are."""
    try:
        return bytes(_BYTES[character] for character in token)
    except KeyError:
        return token.encode("utf-8", "surrogatepass")


class Utf8Stream:
    """Text of a growing byte string; a character comes out when its last byte is there.

    Bytes that cannot be UTF-8 become U+FFFD, as in a decode of the whole. An incomplete end
    never comes out: a reply cut by max_tokens ends before the character it was cut in.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, piece: bytes) -> str:
        """The characters that `piece` completes."""
        text = self._decoder.decode(piece)
        pending, _ = self._decoder.getstate()
        if len(pending) == 2 and pending[0] == 0xED and pending[1] >= 0xA0:
            # Half of a surrogate pair: Python waits for its third byte, which would not help.
            text += self._decoder.decode(b"", True)
        return text


class StopScanner:
    """Cuts a text at its first stop string and holds back what might be the start of one.

    First is the one that is complete first, and of those the longest: the same however the
    text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """What of the text so far may be shown now. Once `stopped`, always nothing."""
        if self.stopped:
            return ""
        if not self._stops:
            return text
        pending = self._held + text
        cut = self._first_stop(pending)
        if cut is not None:
            self.stopped, self._held = True, ""
            return pending[:cut]
        shown = len(pending) - max(_overlap(pending, stop) for stop in self._stops)
        self._held = pending[shown:]
        return pending[:shown]

    def finish(self) -> str:
        """The end of a text that did not stop: what was held back."""
        rest, self._held = self._held, ""
        return rest

    def _first_stop(self, text: str) -> int | None:
        found = [(text.find(stop), len(stop)) for stop in self._stops]
        ends = [(start + length, start) for start, length in found if start >= 0]
        return min(ends)[1] if ends else None


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of `stop` that `text` ends with."""
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0:
        if stop.startswith(text[start:]):
            return len(text) - start
        start = text.find(stop[0], start + 1)
    return 0
