"""A choice of nodes, with what it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from evctl.core.effects import Explanation, Terms
from evctl.policy.directory import Piece
from evctl.policy.terms import (
    DecodeRow,
    DecodeTerms,
    PrefillRow,
    PrefillTerms,
    decode_terms,
    prefill_terms,
)

APPENDED: Final = ", behind its prefix there"
"""How the decision ends in words where a decode node appends."""


class Choice(msgspec.Struct, frozen=True):
    """Both nodes of a request, with every candidate's row. chosen: the terms of the node that
    prefills. appended: that is the decode node, behind the prefix in its L1; append: those that
    could. wanted: what the prefill node lacks of the prompt, and who has it."""

    prefill_rows: Sequence[PrefillRow]
    decode_rows: Sequence[DecodeRow]
    chosen: PrefillTerms
    decode_node: str
    append: Sequence[PrefillTerms] = ()
    appended: bool = False
    wanted: tuple[Piece, ...] = ()

    @property
    def prefill(self) -> list[PrefillTerms]:
        """Of each candidate."""
        return [prefill_terms(row) for row in self.prefill_rows]

    @property
    def decode(self) -> list[DecodeTerms]:
        """Of each candidate."""
        return [decode_terms(row) for row in self.decode_rows]

    @property
    def prefill_node(self) -> str:
        return self.chosen.node

    def explain(self, request_id: str, decision: str) -> Explanation:
        append = APPENDED if self.appended else ""
        where = f"prefill on {self.chosen.node}, decode on {self.decode_node}{append}"
        return Explanation(f"request {request_id}", f"{decision}: {where}", self.terms)

    def terms(self) -> Terms:
        """By what each candidate would do, and its name."""
        found = {f"prefill {t.node}": t.as_dict() for t in self.prefill}
        found.update({f"append {t.node}": t.as_dict() for t in self.append})
        found.update({f"decode {t.node}": t.as_dict() for t in self.decode})
        return found
