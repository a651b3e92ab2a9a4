"""What harnesses say about branches without a request: end, rewrite, fork."""

from __future__ import annotations

from evctl.core.effects import SignalTaken
from evctl.core.events import BranchSignalled
from evctl.policy.directory import Directory
from evctl.policy.turn import Turn

VERSION_UNSAID = "a rewrite says the new version"


def on_signalled(turn: Turn, event: BranchSignalled) -> None:
    """Take a signal in, or say why it changes nothing. It may come twice, late, or for a branch
    that nobody knows; the directory counts each of these."""
    why = _take(turn.state.directory, event, turn.now_s)
    turn.do(SignalTaken(event.tenant, event.signal.branch, event.what, why))


def _take(directory: Directory, event: BranchSignalled, now_s: float) -> str:
    tenant, signal = event.tenant, event.signal
    # Asked before it is taken: afterwards, a fork's new branch would be known.
    why = _objection(directory, event)
    if event.what == "end":
        taken = directory.end(tenant, signal.branch)
    elif event.what == "fork":
        taken = directory.fork(tenant, signal.branch, signal.parent, now_s)
    elif signal.version is None:
        return VERSION_UNSAID
    else:
        taken = directory.rewrite(tenant, signal.branch, signal.version, now_s)
    return "" if taken else why


def _objection(directory: Directory, event: BranchSignalled) -> str:
    """Why the signal may change nothing; read only if it did not."""
    tenant, signal = event.tenant, event.signal
    known, ended = directory.ledger.branches, directory.ledger.ended
    if (tenant, signal.branch) in ended:
        return f"branch {signal.branch} has ended"
    if event.what == "fork":
        if (tenant, signal.branch) in known:
            return f"branch {signal.branch} exists already"
        gone = "has ended" if (tenant, signal.parent) in ended else "is not known"
        return f"its parent {signal.parent} {gone}"
    branch = known.get((tenant, signal.branch))
    if branch is None:
        return f"branch {signal.branch} is not known"
    return f"branch {signal.branch} is at version {branch.version} already"
