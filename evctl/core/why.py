"""Why something is as it is: the answers of /admin/v1/why.

Times that end in _s and are moments are seconds since the epoch; the others are spans.
"""

from __future__ import annotations

import msgspec

from evctl.core.effects import Prediction
from evctl.core.kv_status import KvBlock
from evctl.core.planning import Forecast, PlanDecision
from evctl.core.status import EventRecord
from evctl.core.transitions import NodeMove


class RoutingDecision(msgspec.Struct, frozen=True):
    """One time that a request was given its nodes. after_s: since it arrived. why: "arrived",
    "recalled", "refused by NODE", "NODE was lost". prefill, decode: the terms of every candidate,
    by node; empty where they are no longer kept. append: of the decode nodes that could compute
    what its prompt adds, behind the prefix in their L1; appended: one does."""

    after_s: float
    why: str
    prefill_node: str
    decode_node: str
    predicted: Prediction | None
    prefill: dict[str, dict[str, float]]
    decode: dict[str, dict[str, float]]
    append: dict[str, dict[str, float]] = {}
    appended: bool = False


class RequestOutcome(msgspec.Struct, frozen=True):
    """What happened; None for what has not (yet). wait_s: from the last decision to the start of
    prefill; prefill_s: from there to the first token; ttft_s, e2e_s: from the arrival; handover_s:
    from the first token until the decode node had the KV. fetch_s: of KV from peers and host
    memory; exposed_s: of that, how long it could have run but for its KV."""

    wait_s: float | None = None
    prefill_s: float | None = None
    fetch_s: float | None = None
    exposed_s: float | None = None
    ttft_s: float | None = None
    handover_s: float | None = None
    e2e_s: float | None = None
    cached_tokens: int | None = None
    uncached_tokens: int | None = None
    output_tokens: int | None = None


class RequestWhy(msgspec.Struct, frozen=True):
    """state: waiting, prefill, handover, decode, done, failed, cancelled or rejected; reason: of
    an end, why. source: "memory", or the journal that it was read from."""

    request_id: str
    tenant: str
    branch: str
    source: str
    arrived_s: float
    prompt_tokens: int
    state: str
    reason: str
    decisions: tuple[RoutingDecision, ...]
    outcome: RequestOutcome


class NodeRequest(msgspec.Struct, frozen=True):
    """A request at a node. since_s: how long ago it was sent there."""

    request_id: str
    stage: str
    since_s: float | None
    uncached_tokens: int
    remaining_tokens: int
    predicted: Prediction | None


class NodeWhy(msgspec.Struct, frozen=True):
    """role: by which the router sends; settled_role: whose work is all that runs. how: how it came
    to its role, in words; last: the write that gave it, None where the configuration did. move:
    the part of the node in a change that is under way. model: where its execution-time model comes
    from. running_s, queued_s: predicted seconds of the prefills that run and that wait there.
    requests: the first of those there, in the order that they came. warming: it takes work of both
    phases until it has a model."""

    node: str
    state: str
    role: str
    settled_role: str
    how: str
    last: EventRecord | None
    move: NodeMove | None
    model: str
    running_s: float
    queued_s: float
    decodes: int
    requests: tuple[NodeRequest, ...]
    requests_total: int
    warming: bool = False


class PlanOutcome(msgspec.Struct, frozen=True):
    """What a decision of the planner expected, and what then happened until the next one. split:
    that it left in force. forecast: of that split. measured: from begun_s to ended_s, a move's own
    time left out; None while nothing has ended. requests: that ended in it."""

    number: int
    verdict: str
    split: str
    forecast: Forecast
    begun_s: float
    ended_s: float | None
    measured: Forecast | None
    requests: int


class SplitWhy(msgspec.Struct, frozen=True):
    """decisions: the last of the planner, newest last; moments in them are seconds since the
    epoch. writes: the last writes to split and mode, and changes that ended."""

    split: str
    target_split: str
    mode: str
    held_by: str
    hold_reason: str
    held_until_s: float | None
    decisions: tuple[PlanDecision, ...]
    outcomes: tuple[PlanOutcome, ...]
    writes: tuple[EventRecord, ...]


class CopyWhy(msgspec.Struct, frozen=True):
    """A copy of a block. evicted: when it goes, in words."""

    node: str
    tiers: tuple[int, ...]
    evicted: str


class BlockWhy(msgspec.Struct, frozen=True):
    """block: where it is, and who refers to it. copies: why each would be evicted."""

    block: KvBlock
    copies: tuple[CopyWhy, ...]
