"""Recount what the state keeps counts of, and say what does not agree."""

from __future__ import annotations

import math

from evctl.core.split import Phase
from evctl.policy import directory, moves, standing
from evctl.policy.candidates import late_at_s, serves
from evctl.policy.cluster import ClusterState, NodeRecord, RequestRecord, Stage
from evctl.policy.planner.meter import STAGES
from evctl.policy.standing import standing_of


def check(state: ClusterState) -> list[str]:
    """Violations of what always holds between two steps; empty when all is well."""
    problems: list[str] = []
    for record in state.requests.values():
        problems.extend(_check_request(state, record))
    for node in state.nodes.values():
        meant = {r.request_id for r in state.requests.values() if node.name in _at(r)}
        if meant != set(node.requests):
            odd = ", ".join(sorted(meant ^ set(node.requests)))
            problems.append(f"{node.name}'s list and its requests differ in {odd}")
        problems.extend(_check_load(state, node))
        if node.late and not node.alive:
            problems.append(f"{node.name} is late and lost")
    waiting = sum(r.stage is Stage.WAITING for r in state.requests.values())
    if waiting != state.waiting:
        problems.append(f"{state.waiting} requests counted as waiting, {waiting} are")
    stages = {r.request_id: STAGES[r.stage] for r in state.requests.values()}
    if stages != state.planner.meter.stages:
        problems.append("the planner's stages of requests differ from theirs")
    if state.planner.meter.counts != [list(stages.values()).count(i) for i in range(4)]:
        problems.append("the planner counts requests by stage otherwise than they are")
    tallies = state.tallies
    ended = tallies.rejected + tallies.done + tallies.failed + tallies.cancelled
    if tallies.arrived != ended + len(state.requests):
        problems.append(
            f"{tallies.arrived} requests arrived, {ended} ended, {len(state.requests)} are here"
        )
    for ticket, ahead in state.ahead.tickets.items():
        if ahead.node not in state.nodes or not state.nodes[ahead.node].alive:
            problems.append(f"fetch ahead {ticket} is for {ahead.node}, which is not alive")
    problems += moves.check(state) + state.ahead.check()
    problems += _check_candidates(state) + _check_kept(state)
    return problems + _check_directory(state)


def _check_load(state: ClusterState, node: NodeRecord) -> list[str]:
    """The sums of a node, from its requests alone."""
    here = [r for r in state.requests.values() if node.name in _at(r)]
    prompts = [r for r in here if r.prefill_node == node.name and r.awaits_prefill]
    waiting = [r for r in prompts if r.stage is Stage.WAITING]
    running = [r for r in prompts if r.stage is Stage.PREFILL]
    expected = {
        "waiting": sum(r.uncached_tokens > 0 for r in waiting),
        "waiting_tokens": sum(r.uncached_tokens for r in waiting),
        "waiting_pairs": sum(_pairs(r, r.uncached_tokens) for r in waiting),
        "waiting_restored": sum(r.to_restore_tokens for r in waiting),
        "fetch_blocks": sum(r.fetch_blocks for r in waiting),
        "running": sum(r.remaining_tokens > 0 for r in running),
        "running_tokens": sum(r.remaining_tokens for r in running),
        "running_pairs": sum(_pairs(r, r.remaining_tokens) for r in running),
        "decodes": sum(r.decode_node == node.name for r in here),
        "decoding": sum(r.decode_node == node.name and r.stage is Stage.DECODE for r in here),
        "meant_blocks": sum(-(-r.prompt_tokens // node.block_tokens) for r in here),
    }
    problems = [
        f"{node.name}'s {name} is kept as {getattr(node.load, name)} and is {value}"
        for name, value in expected.items()
        if getattr(node.load, name) != value
    ]
    kept = node.standing
    if kept is not None and standing_of(state, node) is kept:
        fresh = standing.make(state, node)
        if fresh != kept:
            problems.append(f"{node.name} stands as {kept}, not as {fresh}")
    if {r.request_id for r in prompts} != set(node.load.prefills):
        problems.append(f"{node.name}'s prompts are not those that it has to compute")
    return problems


def _pairs(record: RequestRecord, tokens: int) -> int:
    """Each new token looks at all before it and at itself."""
    first = record.prompt_tokens - tokens
    return (first + 1 + record.prompt_tokens) * tokens // 2


def _check_candidates(state: ClusterState) -> list[str]:
    """Who is kept as able to get work is who would be found; times of it are another matter."""
    kept = state.eligible
    if kept is None:
        return []
    alive = [n for n in state.nodes.values() if n.alive]
    usable = [n for n in alive if n.name not in kept.late] or alive
    for phase, nodes in ((Phase.PREFILL, kept.prefill), (Phase.DECODE, kept.decode)):
        expected = [n for n in usable if serves(n, phase)] or usable
        if [n.name for n in nodes] != [n.name for n in expected]:
            return [f"candidates of phase {phase} were found before a node changed"]
    return []


def _check_kept(state: ClusterState) -> list[str]:
    """What is kept of all nodes, so that a step need not ask each."""
    problems, nodes = [], state.nodes.values()
    moving = tuple(n for n in nodes if n.settled_role is not n.role)
    if state.unsettled is not None and state.unsettled != moving:
        problems.append("nodes that have not settled were found before one changed")
    late_s = min((late_at_s(state, n) for n in nodes if n.alive and not n.late), default=math.inf)
    if state.late_from_s is not None and state.late_from_s > late_s:
        problems.append(f"a node is late at {late_s}, and no tick before {state.late_from_s}")
    return problems


def _check_request(state: ClusterState, record: RequestRecord) -> list[str]:
    problems = []
    for name in _at(record):
        node = state.nodes.get(name)
        if node is None or not node.alive:
            problems.append(f"request {record.request_id} is on {name}, which is not alive")
    if not 0 <= record.remaining_tokens <= max(record.uncached_tokens, 0):
        problems.append(f"request {record.request_id} has {record.remaining_tokens} tokens left")
    if record.recalling and not record.awaits_prefill:
        problems.append(f"request {record.request_id} is recalled and decodes")
    return problems


def _at(record: RequestRecord) -> tuple[str, ...]:
    """Nodes that must list a request: its prefill node only until another one decodes it."""
    return (record.decode_node,) if record.stage is Stage.DECODE else record.nodes


def _check_directory(state: ClusterState) -> list[str]:
    """Its own books, and that it knows the nodes and requests that the state knows."""
    problems = directory.check(state.directory)
    alive = {node.name: node.life for node in state.nodes.values() if node.alive}
    known = {name: life.boot_id for name, life in state.directory.nodes.items()}
    if alive != known:
        problems.append(f"the directory knows lives {known}, alive are {alive}")
    opened = state.directory.requests.open
    if opened.keys() != state.requests.keys():
        odd = ", ".join(sorted(opened.keys() ^ state.requests.keys()))
        problems.append(f"the directory's requests differ in {odd}")
    problems += _check_leases(state)
    for record in state.requests.values():
        request = opened.get(record.request_id)
        promised = request.promise[0].name if request and request.promise else ""
        expected = record.prefill_node if record.awaits_prefill else ""
        if promised != expected:
            problems.append(f"request {record.request_id} is promised by {promised!r}")
    return problems


def _check_leases(state: ClusterState) -> list[str]:
    """Blocks are leased for the fetch of a request that waits, and for nothing else."""
    problems = []
    for request_id, request in state.directory.requests.open.items():
        record = state.requests.get(request_id)
        leased = sum(end - start for _, start, end, _ in request.leases)
        planned = record.fetch_blocks if record is not None else 0
        if leased > planned:
            problems.append(f"request {request_id} leases {leased} blocks of {planned}")
        if planned and record is not None and record.stage is not Stage.WAITING:
            problems.append(f"request {request_id} fetches and does not wait")
    return problems
