"""What nodes that are alike lend each other: the terms of a phase that a node has never run.

A node that works in one role shows the times of one phase only. Another one of the same model,
hardware, engine and ranks takes the same time for the same work, so its terms stand in.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from evctl.core.costs import Coefficients
from evctl.core.split import Phase

Known = Mapping[Phase, Coefficients]
"""What was fitted to a node's own work: of each phase, coefficients whose terms of it count."""


class Loan(msgspec.Struct, frozen=True):
    """A whole model, and for each phase that is not the node's own, who lent its terms."""

    coefficients: Coefficients
    lenders: dict[Phase, str]


def borrow(name: str, alike: Mapping[str, Known], before: Mapping[Phase, str]) -> Loan | None:
    """A whole model for a node: its own terms, and of a phase that it has none of, those of one
    node like it. None where nobody knows a phase, or the node needs nothing.

    alike: by node, itself included. Who lent a phase before goes on doing so; else whoever fitted
    it to the most windows, then by name. One node's terms and not the mean of all: they were
    fitted together, and so are their errors.
    """
    own = alike.get(name, {})
    lenders = {phase: _lender(phase, alike, before) for phase in Phase if phase not in own}
    if not lenders or not all(lenders.values()):
        return None
    prefill, decode = (alike[lenders.get(phase, name)][phase] for phase in Phase)
    return Loan(merged(prefill, decode), lenders)


def merged(prefill: Coefficients, decode: Coefficients) -> Coefficients:
    """The prefill terms of one and the decode terms of the other; as far off as the worse one."""
    return msgspec.structs.replace(
        decode,
        c0_s=prefill.c0_s,
        c1_s=prefill.c1_s,
        c2_s=prefill.c2_s,
        c3_s=prefill.c3_s,
        errors=(*prefill.errors[:4], *decode.errors[4:]),
        unidentified=(
            *(term for term in prefill.unidentified if term.startswith("c")),
            *(term for term in decode.unidentified if term.startswith("d")),
        ),
        windows=(prefill.windows[0], decode.windows[1]),
        residual=max(prefill.residual, decode.residual),
    )


def _lender(phase: Phase, alike: Mapping[str, Known], before: Mapping[Phase, str]) -> str:
    """ "" where nobody knows the phase."""
    if phase in alike.get(before.get(phase, ""), {}):
        return before[phase]
    index = list(Phase).index(phase)
    knowing = [
        (-known[phase].windows[index], name) for name, known in alike.items() if phase in known
    ]
    return min(knowing)[1] if knowing else ""
