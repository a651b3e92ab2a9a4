"""Engines that were turned away: what keeps each from joining, for as long as it does."""

from __future__ import annotations

from typing import Final

from evctl.core.status import Refusal
from evctl.wire.keys import to_z85

MAX_REFUSALS: Final = 64


class Refusals:
    """The last refusal of each key. Bounded: those of keys that are no node's go first."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, Refusal] = {}
        self._number = 0

    def add(self, public_key: bytes, node: str, code: str, why: str) -> Refusal | None:
        """Take one down; returns it if it says something new. Strangers can have any number of
        keys, so one of them speaks for all."""
        before = self._by_key.pop(public_key, None) or self._other_stranger(node, code)
        self._number += 1
        refusal = Refusal(self._number, node, to_z85(public_key), code, why)
        self._by_key[public_key] = refusal
        if len(self._by_key) > MAX_REFUSALS:
            del self._by_key[self._least()]
        is_known = before is not None and (before.node, before.code) == (node, code)
        return None if is_known else refusal

    def forget(self, public_key: bytes) -> None:
        """It joined."""
        self._by_key.pop(public_key, None)

    def listed(self) -> tuple[Refusal, ...]:
        """Oldest first."""
        return tuple(self._by_key.values())

    def _other_stranger(self, node: str, code: str) -> Refusal | None:
        found = (r for r in self._by_key.values() if not r.node and r.code == code)
        return None if node else next(found, None)

    def _least(self) -> bytes:
        strangers = (key for key, refusal in self._by_key.items() if not refusal.node)
        return next(strangers, next(iter(self._by_key)))
