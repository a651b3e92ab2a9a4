"""Confirmation in three tiers. Nothing here ever waits on a stdin that is not a terminal."""

from __future__ import annotations

import sys
from enum import IntEnum

from evctl.cli.failures import declined, needs_confirmation
from evctl.cli.style import painted


class Tier(IntEnum):
    """What a mistake costs. NONE: nothing. DISRUPTIVE: work in flight. DESTRUCTIVE: data."""

    NONE = 0
    DISRUPTIVE = 1
    DESTRUCTIVE = 2


def confirm(
    what: str,
    tier: Tier,
    *,
    cluster: str,
    protected: bool,
    yes: bool,
    confirmed: str | None,
) -> None:
    """Return when the user agrees. A protected cluster raises the tier by one.

    what: said as an order, such as `stop cluster c`. yes answers DISRUPTIVE; the cluster's name,
    typed or as `confirmed`, answers any tier; another name is refused even where none is needed.
    Raises RefusedError: EV-1802 nobody can be asked, EV-1803 the answer was no.
    """
    if confirmed is not None and confirmed != cluster:
        raise declined(what, f"--confirm says {confirmed!r}, and the cluster is {cluster!r}")
    raised = Tier(min(Tier.DESTRUCTIVE, tier + (1 if protected else 0)))
    if raised is Tier.NONE or (raised is Tier.DISRUPTIVE and yes):
        return
    if confirmed is not None:
        return
    if not sys.stdin.isatty():
        flag = "-y" if raised is Tier.DISRUPTIVE else f"--confirm {cluster}"
        raise needs_confirmation(what, flag)
    warning = painted("protected cluster. ", "red", sys.stderr) if protected else ""
    if raised is Tier.DISRUPTIVE:
        answer = _ask(f"{warning}{what}? [y/N] ")
        agreed = answer.lower() in ("y", "yes")
    else:
        answer = _ask(f"{warning}{what}. Type the cluster's name to go on: ")
        agreed = answer == cluster
    if not agreed:
        raise declined(what)


def _ask(question: str) -> str:
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip()
