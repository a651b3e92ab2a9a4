"""Requests: arrival, refusal, progress, end."""

from __future__ import annotations

from evctl.core.blocks import KEY_BYTES
from evctl.core.branches import BranchSignal
from evctl.core.effects import Cancel, Reject
from evctl.core.events import (
    DispatchFailed,
    FetchEnded,
    FirstToken,
    IterationSample,
    PrefillStarted,
    RequestArrived,
    RequestCancelled,
    RequestDone,
    TransferDone,
    TransferFailed,
)
from evctl.core.sampling import FinishReason
from evctl.core.split import Phase
from evctl.core.workload import attention_pairs
from evctl.policy import ahead, warmup
from evctl.policy.cluster import NodeRecord, RequestRecord, Stage
from evctl.policy.order import in_order
from evctl.policy.plausible import can_be, fetch_can_be, within
from evctl.policy.router import can_serve, retry_after_s
from evctl.policy.turn import Turn


def on_arrived(turn: Turn, event: RequestArrived) -> None:
    """Turn a request away, or send it to the node that will answer first."""
    state = turn.state
    if event.request_id in state.requests:
        turn.notice("warn", "a request id in use arrived again", request_id=event.request_id)
        return
    state.tallies.arrived += 1
    if state.waiting >= state.config.max_queued:
        _reject(turn, event.request_id, f"{state.waiting} requests are waiting")
        return
    if not can_serve(state):
        _reject(turn, event.request_id, "no node is alive")
        return
    record = RequestRecord(
        request_id=event.request_id,
        tenant=event.tenant,
        prompt_tokens=event.prompt_tokens,
        max_output_tokens=event.max_output_tokens,
        keys=event.block_keys[: len(event.block_keys) // KEY_BYTES * KEY_BYTES],
        arrived_s=turn.now_s,
        branch=event.branch.branch if event.branch else "",
        root_key=event.root_key,
        resume_s=event.branch.expect_resume_s if event.branch else None,
        session=_session(event.branch),
    )
    state.requests[record.request_id] = record
    match = state.directory.arrive(
        record.request_id, record.tenant, event.root_key, record.keys, turn.now_s, event.branch
    )
    ahead.on_arrived(state, record, turn.now_s)
    if record.branch:
        state.planner.meter.resumes((record.tenant, record.branch), turn.now_s)
    turn.place(record, "arrived", match)


def on_cancelled(turn: Turn, event: RequestCancelled) -> None:
    """The client left: nothing of the request may go on anywhere. If it was to be the branch's
    last one, the branch ends all the same: nobody waits for it."""
    record = turn.state.requests.get(event.request_id)
    if record is None:
        return
    nodes = record.nodes
    turn.end(record, completed=True)
    turn.dropped.add(record.request_id)
    turn.state.tallies.cancelled += 1
    turn.do(Cancel(record.request_id, nodes))


def on_dispatch_failed(turn: Turn, event: DispatchFailed) -> None:
    """A node refused a request: another may take it, a bounded number of times."""
    record = turn.state.requests.get(event.request_id)
    if record is None or record.prefill_node != event.node or record.stage is not Stage.WAITING:
        turn.state.tallies.ignored += 1
        return
    record.tried = (*record.tried, event.node)
    turn.unplace(record)
    again = event.retry and len(record.tried) < turn.state.config.max_tries
    if again and turn.place(record, f"refused by {event.node}"):
        return
    turn.fail(record, f"{event.node} refused it ({event.code}): {event.reason}")


def on_prefill_started(turn: Turn, node: NodeRecord, fact: PrefillStarted) -> None:
    """A prefill that starts again on the decode node (preempted there) changes nothing here."""
    record = known(turn, node, fact.request_id)
    if record is None or not record.awaits_prefill or record.prefill_node != node.name:
        return
    uncached = within(fact.uncached_tokens, record.prompt_tokens)
    cached = within(fact.cached_tokens, record.prompt_tokens - uncached)
    record.uncached_tokens = record.remaining_tokens = uncached
    node.mix.began(cached)
    if record.stage is Stage.WAITING:
        _measure(turn, node, record, cached)
    turn.set_stage(record, Stage.PREFILL)
    turn.state.recount(record)  # it may have been in that stage


def on_fetch_ended(turn: Turn, node: NodeRecord, fact: FetchEnded) -> None:
    """What was fetched is in, and read no more. It counts once, for the placement that it is
    of; what did not come must be computed."""
    record = known(turn, node, fact.request_id)
    if record is None or record.prefill_node != node.name or record.stage is not Stage.WAITING:
        return
    found_blocks = fact.own_blocks + sum(source.blocks for source in fact.peers)
    record.restored_tokens = within(found_blocks * node.block_tokens, record.prompt_tokens)
    if not record.fetch_blocks:  # it looked in its own L2 only, or this comes twice
        return
    fetched = sum(source.blocks for source in fact.peers)
    if fetched and fetch_can_be(fact):
        turn.state.observe_fetch(node, fetched + record.fetch_behind_blocks, fact.fetch_s)
    turn.fetch_over(record)
    missed_tokens = max(0, fact.missed_blocks) * node.block_tokens
    uncached = min(record.uncached_tokens + missed_tokens, record.prompt_tokens)
    record.uncached_tokens = record.remaining_tokens = uncached
    record.to_restore_tokens = max(0, record.to_restore_tokens - missed_tokens)
    turn.state.recount(record)


def on_first_token(turn: Turn, node: NodeRecord, fact: FirstToken) -> None:
    """The prompt is computed; from here on only the decode node can be waited for."""
    record = known(turn, node, fact.request_id)
    if record is None or not record.awaits_prefill:
        return
    here = record.decode_node == record.prefill_node
    turn.set_stage(record, Stage.DECODE if here else Stage.HANDOVER)
    turn.state.directory.moved(record.request_id, Phase.PREFILL)
    if here:
        turn.state.directory.moved(record.request_id, Phase.DECODE)


def on_transfer_done(turn: Turn, node: NodeRecord, fact: TransferDone) -> None:
    """The destination owns the request now. One that was lost meanwhile took it along."""
    record = known(turn, node, fact.request_id)
    if record is None or record.prefill_node != node.name:
        return
    if record.decode_node != fact.destination:
        turn.fail(record, f"its decode node {fact.destination} was lost")
        return
    turn.set_stage(record, Stage.DECODE)
    turn.state.directory.moved(record.request_id, Phase.DECODE)


def on_transfer_failed(turn: Turn, node: NodeRecord, fact: TransferFailed) -> None:
    """The engine decodes where it prefilled."""
    record = known(turn, node, fact.request_id)
    if record is None or record.prefill_node != node.name or record.stage is Stage.DECODE:
        return
    expected = record.decode_node == record.prefill_node
    turn.decode_in_place(record)
    if record.stage is Stage.HANDOVER:
        turn.set_stage(record, Stage.DECODE)
        turn.state.directory.moved(record.request_id, Phase.DECODE)
    if expected:  # its decode node was lost, and that was told already
        return
    what = f"hand-over to {fact.destination} failed: {fact.reason}; decoding in place"
    turn.notice("warn", what, node.name, fact.request_id)


def on_done(turn: Turn, node: NodeRecord, fact: RequestDone) -> None:
    """The engine that owned the request ended it."""
    record = known(turn, node, fact.request_id)
    if record is None:
        return
    output_tokens = within(fact.output_tokens, max(1, record.max_output_tokens))
    turn.state.observe_output(output_tokens)
    ended_well = fact.reason not in (FinishReason.ERROR, FinishReason.CANCELLED)
    turn.end(record, completed=ended_well)
    if not ended_well:
        turn.dropped.add(record.request_id)
    tallies = turn.state.tallies
    if fact.reason == FinishReason.ERROR:
        tallies.failed += 1
        turn.notice("warn", f"ended in an error: {fact.detail}", node.name, fact.request_id)
    elif fact.reason == FinishReason.CANCELLED:
        tallies.cancelled += 1
    else:
        tallies.done += 1
        turn.state.planner.meter.completed(output_tokens)


def on_sample(turn: Turn, node: NodeRecord, fact: IterationSample) -> None:
    """Learn the node's speed; running prefills advance in the order in which engines compute
    them. An iteration that cannot have been is ignored."""
    warmup.on_sample(turn, node)
    if not can_be(fact):
        turn.state.tallies.ignored += 1
        return
    turn.state.observe_iteration(node, fact)
    turn.state.planner.meter.iterated(fact.prefill_tokens)
    _advance(turn, node, fact.prefill_tokens)
    more_waits = bool(fact.prefill_tokens and (node.load.running or node.load.waiting))
    node.mix.observe(fact, more_waits=more_waits)
    node.tokens_per_iteration = node.mix.tokens_per_iteration
    node.restored_share = node.mix.restored_share


def _advance(turn: Turn, node: NodeRecord, tokens: int) -> None:
    """So many prompt tokens were computed."""
    left = tokens
    if left <= 0:
        return
    for record in in_order(turn.state, node):
        if record.stage is Stage.PREFILL and record.remaining_tokens:
            taken = min(left, record.remaining_tokens)
            record.remaining_tokens -= taken
            turn.state.recount(record)
            left -= taken
            if not left:
                return


def _measure(turn: Turn, node: NodeRecord, record: RequestRecord, cached_tokens: int) -> None:
    """The planner counts a request when its prefill begins, with what it then is."""
    uncached_tokens = record.uncached_tokens
    pairs = attention_pairs(uncached_tokens, cached_tokens)
    turn.state.planner.meter.began(
        record.request_id,
        uncached_tokens,
        cached_tokens,
        record.restored_tokens,
        turn.state.prefill_s(node, uncached_tokens, pairs, record.restored_tokens),
        turn.now_s,
    )


def known(turn: Turn, node: NodeRecord, request_id: str) -> RequestRecord | None:
    """The request, if it is under way and this node has to do with it."""
    record = turn.state.requests.get(request_id)
    if record is None or node.name not in record.nodes:
        turn.state.tallies.ignored += 1
        return None
    return record


def _session(signal: BranchSignal | None) -> str:
    """What its client calls the session, else the branch; "" for neither."""
    return (signal.session or signal.branch) if signal is not None else ""


def _reject(turn: Turn, request_id: str, reason: str) -> None:
    turn.state.tallies.rejected += 1
    turn.do(Reject(request_id, reason, retry_after_s(turn.state, turn.now_s)))
