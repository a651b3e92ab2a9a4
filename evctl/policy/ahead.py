"""Fetching ahead: a waiting branch's blocks go to where it will be prefilled before it wakes.

Plus mode (`PolicyConfig.fetch_ahead`). A branch is expected when its client said so, else after
its usual pause. Nothing is leased at the peers: what is fetched is the waiting branch's own
context, whose references keep it there, and a copy that is gone all the same costs only the
advantage.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from evctl.core.effects import Explanation, FetchAhead
from evctl.core.events import FetchAheadEnded
from evctl.core.split import Phase
from evctl.policy.candidates import candidates, known
from evctl.policy.cluster import ClusterState, NodeRecord, RequestRecord
from evctl.policy.directory import Match, Piece
from evctl.policy.fetches import lacking, plan, room, size
from evctl.policy.pauses import EXPIRES_S, Ahead, BranchKey, Pause
from evctl.policy.plausible import fetch_can_be
from evctl.policy.terms import held_blocks

MOST_PAUSE_S = 1e9
"""Longer ones are never; the gateway's bound is lower."""


def on_arrived(state: ClusterState, record: RequestRecord, now_s: float) -> None:
    """A branch does not wait any more."""
    if record.branch:
        state.ahead.ended((record.tenant, record.branch), now_s)


def on_closed(state: ClusterState, record: RequestRecord, now_s: float) -> None:
    """A request ended: if it was its branch's only one, the branch waits from now on. Plans when
    to look after it, early enough for a fetch of all its context."""
    if not record.branch or not state.config.fetch_ahead:
        return
    key = (record.tenant, record.branch)
    branch = state.directory.ledger.branches.get(key)
    if branch is None:
        state.ahead.forget(key)
        return
    fetching = [node for node in state.nodes.values() if node.alive and node.l2_blocks]
    if branch.open or not fetching:
        return
    pause = state.ahead.began(key, record.root_key, now_s)
    expected_s = record.resume_s if record.resume_s is not None else pause.usual_s
    if expected_s is None or not 0.0 <= expected_s <= MOST_PAUSE_S:
        return
    pause.wake_s = now_s + expected_s
    slowest_s = max(state.fetch_s(node, branch.end) for node in fetching)
    lead_s = max(state.config.fetch_ahead_lead_s, slowest_s)
    state.ahead.plan(key, max(now_s, pause.wake_s - lead_s))


def wake(state: ClusterState, now_s: float) -> Iterator[tuple[FetchAhead, Explanation]]:
    """Fetches for branches that are expected soon. Each is looked after twice at most."""
    ahead = state.ahead
    old = takewhile(lambda item: item[1].sent_s + EXPIRES_S <= now_s, ahead.tickets.items())
    for ticket, _ in list(old):
        ahead.over(ticket)
        ahead.outcomes.lost += 1
    for key, pause in ahead.due(now_s):
        found = _look_after(state, key, pause, now_s)
        if found is not None:
            yield found


def on_ended(state: ClusterState, node: NodeRecord, fact: FetchAheadEnded) -> None:
    """Make room for others, and learn from it. A ticket that is not known changes nothing."""
    ahead = state.ahead.tickets.get(fact.ticket)
    if ahead is None or ahead.node != node.name:
        state.tallies.ignored += 1
        return
    state.ahead.over(fact.ticket)
    fetched = sum(source.blocks for source in fact.peers)
    outcomes = state.ahead.outcomes
    outcomes.fetched_blocks += fetched
    if fact.missed_blocks:
        outcomes.short += 1
    else:
        outcomes.done += 1
    if fetched and fetch_can_be(fact):
        state.observe_fetch(node, fetched + ahead.behind_blocks, fact.fetch_s)


def forget_node(state: ClusterState, node: str) -> None:
    """The node is lost, and with it what it was fetching. What it was to send comes from another
    peer or is missed; the node that fetches says so."""
    lost = [ticket for ticket, ahead in state.ahead.tickets.items() if ahead.node == node]
    for ticket in lost:
        state.ahead.over(ticket)
        state.ahead.outcomes.lost += 1


def _look_after(
    state: ClusterState, key: BranchKey, pause: Pause, now_s: float
) -> tuple[FetchAhead, Explanation] | None:
    ahead = state.ahead
    branch = state.directory.ledger.branches.get(key)
    if branch is None:
        ahead.forget(key)
        return None
    match = state.directory.context(*key)
    if match is None or branch.open or key in ahead.busy:
        return None
    target = _target(state, match, now_s)
    wanted = _wanted(state, key, target, match, now_s) if target is not None else []
    if target is None or not wanted:
        ahead.outcomes.nothing_to_fetch += 1
        return None
    behind = _behind(state, target)
    lead_s = max(state.config.fetch_ahead_lead_s, state.fetch_s(target, behind + size(wanted)))
    if now_s < pause.wake_s - lead_s and not pause.looked:
        pause.looked = True
        ahead.plan(key, pause.wake_s - lead_s)
        return None
    wanted = _first(wanted, _allowed(state, target))
    if not wanted:
        ahead.outcomes.no_room += 1
        return None
    pieces = plan(state, wanted)
    ticket = ahead.sent(Ahead(target.name, key, pieces, behind, now_s))
    keys = state.directory.context_keys(*key)
    terms = {
        "blocks": float(size(wanted)),
        "expected_in_s": pause.wake_s - now_s,
        "fetch_s": state.fetch_s(target, behind + size(wanted)),
    }
    said = f"fetch {size(wanted)} blocks ahead to {target.name}"
    return (
        FetchAhead(target.name, ticket, pause.root_key, keys[: 16 * pieces[-1].end], pieces),
        Explanation(f"branch {key[1]}", said, {f"prefill {target.name}": terms}),
    )


def _target(state: ClusterState, match: Match, now_s: float) -> NodeRecord | None:
    """Where the branch will most likely be prefilled: the node with the longest prefix."""
    peers = known(state, now_s).peers
    fitting = [node for node in candidates(state, Phase.PREFILL, now_s) if node.name in peers]
    return min(
        fitting, key=lambda node: (-match.coverage.get(node.name, 0), node.name), default=None
    )


def _wanted(
    state: ClusterState, key: BranchKey, target: NodeRecord, match: Match, now_s: float
) -> list[Piece]:
    held = held_blocks(match, target.name)
    peers = known(state, now_s).peers
    pieces = state.directory.context_lenders(*key, held)
    return lacking(((low, high, who & peers) for low, high, who in pieces), target.name, held)


def _behind(state: ClusterState, target: NodeRecord) -> int:
    """Blocks that the node fetches already."""
    return target.load.fetch_blocks + state.ahead.blocks_to(target.name)


def _allowed(state: ClusterState, target: NodeRecord) -> int:
    """Blocks that may be fetched ahead to the node now."""
    budget = state.config.fetch_ahead_blocks - state.ahead.blocks
    return max(0, min(budget, room(state, target) - state.ahead.blocks_to(target.name)))


def _first(wanted: list[Piece], blocks: int) -> list[Piece]:
    """The leading blocks of pieces: so many in all."""
    found = []
    for start, end, nodes in wanted:
        end = min(end, start + blocks)
        if start < end:
            found.append((start, end, nodes))
        blocks -= end - start
    return found
