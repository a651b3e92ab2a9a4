"""Texts of clients that must not become control tokens.

A chat is rendered into one string, in which <|im_end|> of the template and <|im_end|> that a
user typed look alike. So every string of a client is marked before it is rendered: one
character that occurs nowhere in the request goes into each special token it spells. What is
found afterwards is the template's; the rest is encoded as plain text, without the marks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from evctl.gateway.apierror import bad_request


class SpecialTokens:
    """The special tokens of one vocabulary. Raises ValueError for one of a single character,
    which has no inside to be marked in."""

    def __init__(self, ids: dict[str, int]) -> None:
        if any(len(token) < 2 for token in ids):
            raise ValueError("a special token of one character is not supported")
        longest_first = sorted(ids, key=lambda token: (-len(token), token))
        self._ids = ids
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        cuts = [(token, cut) for token in ids for cut in range(1, len(token))]
        self._heads = _by_edge([token[:cut] for token, cut in cuts], -1)
        self._tails = _by_edge([token[cut:] for token, cut in cuts], 0)

    def split(self, text: str) -> Iterator[str | int]:
        """Plain pieces as text and special tokens as ids, in order."""
        start = 0
        for match in self._pattern.finditer(text):
            if match.start() > start:
                yield text[start : match.start()]
            yield self._ids[match[0]]
            start = match.end()
        if start < len(text):
            yield text[start:]

    def marked(self, value: Any, marker: str) -> Any:
        """`value` with every string inside it marked; lists and dicts are copied."""
        if isinstance(value, str):
            return self._marked_text(value, marker)
        if isinstance(value, dict):
            return {self.marked(k, marker): self.marked(v, marker) for k, v in value.items()}
        if isinstance(value, list):
            return [self.marked(item, marker) for item in value]
        return value

    def _marked_text(self, text: str, marker: str) -> str:
        for token in self._ids:
            while token in text:  # again, for tokens that overlap themselves
                text = text.replace(token, token[0] + marker + token[1:])
        # Neither may an end of the text make up a token with what the template puts beside it.
        if any(text.startswith(tail) for tail in self._tails.get(text[:1], ())):
            text = marker + text
        if any(text.endswith(head) for head in self._heads.get(text[-1:], ())):
            text += marker
        return text


def unused_character(values: Any) -> str:
    """A character that occurs in no string inside `values`. Raises ApiError 400 if none is left.

    It is one of Unicode's 32 noncharacters, which are kept for such internal use.
    """
    strings = list(_strings(values))
    for candidate in map(chr, range(0xFDD0, 0xFDF0)):
        if not any(candidate in text for text in strings):
            return candidate
    raise bad_request("the messages hold every noncharacter of Unicode", "messages")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _by_edge(parts: Iterable[str], edge: int) -> dict[str, tuple[str, ...]]:
    """Parts of tokens by the character at their outer end, which most texts do not have."""
    found: dict[str, set[str]] = {}
    for part in parts:
        found.setdefault(part[edge], set()).add(part)
    return {character: tuple(sorted(same)) for character, same in found.items()}
