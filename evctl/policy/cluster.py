"""What the reducer knows: nodes, requests, roles. One mutable object, changed by step() only."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from evctl.core.costs import Coefficients
from evctl.core.errors import UsageError
from evctl.core.events import IterationSample, NodeReport
from evctl.core.split import Phase, Role, Split, parse_split
from evctl.policy.changes import Transitions
from evctl.policy.costmodel.service import Rates, at_rates, prefill_rates
from evctl.policy.directory import Directory, DirectoryConfig
from evctl.policy.links import FetchPrior, FetchSpeed
from evctl.policy.loads import NodeLoad, Share, shares_of
from evctl.policy.mix import Mix
from evctl.policy.pauses import FetchAheads
from evctl.policy.planner import Planner, PlannerConfig
from evctl.policy.speed import DecodePace, PrefillSpeed, pooled_token_s

if TYPE_CHECKING:
    from evctl.policy.candidates import Candidates

DEFAULT_AGEING = 0.1
"""Of PolicyConfig.prefill_ageing, from the sketch in evctl/bench/router/ageing.py."""

ROUTING_NAMES = ("predicted", "cache-aware", "session", "round-robin")
"""Rules of policy/router.py."""
OUTPUT_WEIGHT = 0.05
"""Of one more request in the mean output: about the last 20 count."""


class PolicyConfig(msgspec.Struct, frozen=True):
    """What a replay must know besides the events.

    nodes: all names, alive or not. split: roles by the order of `nodes`, prefill first;
    `roles` (node -> P or D) rules where it names a node: an earlier life's last word, with its
    generation and mode, and until when that is held (held_until_s, on the reducer's clock) before
    it is mode_after. transitions: number of the last change of the split.
    prior_token_s, prior_fetch: times before anything was measured.
    duplicate_block_s: what a block costs that must go for a fetched copy (lambda of Eq. 7; neither
    the paper nor the design gives it a value, and 0 is Eq. 7 without that term).
    fetch_ahead: fetch for waiting branches before they wake (plus; off in paper mode), at least
    fetch_ahead_lead_s before, at most fetch_ahead_blocks at a time over the cluster.
    warm_up_s: how long a node without coefficients works for both phases, in turns, from its first
    iteration on, so that its model can be fitted; 0: never.
    routing: whose rule chooses nodes, one of ROUTING_NAMES. shortest_first: engines
    compute the shortest remaining prefill first (plus), where prefill_ageing seconds of work weigh
    as much as a second of waiting. append_tokens: most new tokens that may run on a decode node
    that holds the rest (plus); 0: never.
    """

    nodes: tuple[str, ...]
    split: str
    max_queued: int = 256
    node_late_after_s: float = 5.0
    max_tries: int = 3
    prior_token_s: float = 1e-3
    prior_fetch: FetchPrior = FetchPrior()
    duplicate_block_s: float = 0.0
    fetch_ahead: bool = True
    fetch_ahead_blocks: int = 1024
    fetch_ahead_lead_s: float = 1.0
    warm_up_s: float = 0.0
    routing: str = "predicted"
    shortest_first: bool = False
    prefill_ageing: float = DEFAULT_AGEING
    append_tokens: int = 0
    directory: DirectoryConfig = DirectoryConfig()
    roles: dict[str, str] = {}
    generation: int = 0
    mode: str = "advise"
    held_by: str = ""
    hold_reason: str = ""
    held_until_s: float | None = None
    mode_after: str = "advise"
    transitions: int = 0
    planner: PlannerConfig = PlannerConfig()


class Stage(StrEnum):
    """Where a request stands. WAITING: sent to its prefill node and not begun."""

    WAITING = "waiting"
    PREFILL = "prefill"
    HANDOVER = "handover"
    DECODE = "decode"


class RequestRecord(msgspec.Struct):
    """A request between arrival and end.

    uncached_tokens: predicted at dispatch, then as the engine says. remaining_tokens: of those,
    not computed yet. tried: nodes that refused it. recalling: a Recall is under way.
    fetch_blocks: of its prompt, asked from peers and not there yet, as far as is known;
    fetch_behind_blocks: those of others at its node when they were asked for. resume_s: how long
    its branch will pause afterwards, if its client said so. session: what a fixed session goes
    by. to_restore_tokens: of its prompt, expected from host memory, its node's own or a peer's;
    restored_tokens: those that came. appended: its decode node prefills it, behind the prefix that
    it holds already. shares: what it adds to loads of nodes.
    """

    request_id: str
    tenant: str
    prompt_tokens: int
    max_output_tokens: int
    keys: bytes
    arrived_s: float
    branch: str = ""
    prefill_node: str = ""
    decode_node: str = ""
    stage: Stage = Stage.WAITING
    uncached_tokens: int = 0
    remaining_tokens: int = 0
    recalling: bool = False
    tried: tuple[str, ...] = ()
    root_key: bytes = b""
    fetch_blocks: int = 0
    fetch_behind_blocks: int = 0
    resume_s: float | None = None
    session: str = ""
    to_restore_tokens: int = 0
    restored_tokens: int = 0
    appended: bool = False
    shares: tuple[tuple[NodeRecord, Share], ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that may know of it, once each. Once it decodes, its prefill node has passed
        it on, and forwards what it still hears of it."""
        if self.stage is Stage.DECODE or self.prefill_node == self.decode_node:
            return (self.decode_node,)
        return (self.prefill_node, self.decode_node)

    @property
    def waits(self) -> bool:
        return self.stage is Stage.WAITING

    @property
    def decodes_now(self) -> bool:
        return self.stage is Stage.DECODE

    @property
    def awaits_prefill(self) -> bool:
        return self.stage in (Stage.WAITING, Stage.PREFILL)


class NodeRecord(msgspec.Struct):
    """A node of the cluster, alive or not.

    role: what the router sends it. settled_role: the last role whose work it has finished;
    they differ while a change is under way. requests: those that it prefills or will decode
    or decodes (an ordered set). seen_s: time of its last sign of life. joins: times it joined.
    coefficients: of its execution-time model, None until there is one; model_source: where they
    come from (PlanDecision.model). tokens_per_iteration: new tokens of a prefill iteration when it
    is busy (m of section 4), 0 while unknown; restored_share: of cached tokens, those that come
    from host memory; mix: what both are measured by. warming: it takes work of both phases, for
    warm_s seconds of work, the last of it at warm_seen_s (None: it has not begun). load: sums
    over its requests. standing: what policy/standing.py made of it, None once it has changed.
    """

    name: str
    role: Role
    settled_role: Role
    alive: bool = False
    late: bool = False
    boot_id: str = ""
    joins: int = 0
    l1_blocks: int = 0
    block_tokens: int = 1
    l2_blocks: int = 0
    max_running: int = 0
    seen_s: float = 0.0
    report: NodeReport | None = None
    speed: PrefillSpeed = msgspec.field(default_factory=PrefillSpeed)
    fetches: FetchSpeed = msgspec.field(default_factory=FetchSpeed)
    requests: dict[str, None] = msgspec.field(default_factory=dict)
    coefficients: Coefficients | None = None
    model_source: str = "prior"
    tokens_per_iteration: float = 0.0
    restored_share: float = 0.0
    mix: Mix = msgspec.field(default_factory=Mix)
    warming: bool = False
    warm_s: float = 0.0
    warm_seen_s: float | None = None
    load: NodeLoad = msgspec.field(default_factory=NodeLoad)
    pace: DecodePace = msgspec.field(default_factory=DecodePace)
    standing: Any = None

    @property
    def life(self) -> str:
        """Names its present connection. A boot id alone would not do: an engine whose connection
        broke comes back with the same one, and what was known of it cannot be trusted."""
        return f"{self.boot_id}/{self.joins}"


class Tallies(msgspec.Struct):
    """Counts since the start; arrived = rejected + done + failed + cancelled + in flight."""

    arrived: int = 0
    rejected: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    ignored: int = 0
    """Facts about requests, or lives of nodes, that are not known (any more)."""


class ClusterState:
    """Everything that decisions depend on. Owned by one caller, who passes it to step()."""

    def __init__(self, config: PolicyConfig) -> None:
        """Raises UsageError when the split is not one of that many nodes, or nobody routes so."""
        if config.routing not in ROUTING_NAMES:
            raise UsageError(
                what=f"there is no routing {config.routing!r}",
                why=f"it is one of {', '.join(ROUTING_NAMES)}",
                next_step="correct `routing` of the cluster",
                code="EV-1109",
            )
        self.config = config
        self.generation = config.generation
        self.mode = config.mode
        self.held_by = config.held_by
        self.hold_reason = config.hold_reason
        self.held_until_s = config.held_until_s
        """When the hold ends by itself; None for never."""
        self.mode_after = config.mode_after
        """What the mode was before somebody held the split, and will be when a hold ends."""
        self.nodes: dict[str, NodeRecord] = {}
        for name, role in initial_roles(config).items():
            self.nodes[name] = NodeRecord(name, role, role)
        self.requests: dict[str, RequestRecord] = {}
        self.directory = Directory(config.directory)
        self.fetches = FetchSpeed()
        """Of all nodes: what one that has not fetched yet is taken for."""
        self.ahead = FetchAheads()
        self.transitions = Transitions(config.transitions)
        self.tallies = Tallies()
        self.planner = Planner(config.planner, fresh=not config.generation)
        self.waiting = 0
        """Requests in stage WAITING; check() recounts it."""
        self._pooled_token_s: float | None = None
        """What a node without evidence is taken for, until the next evidence."""
        self.eligible: Candidates | None = None
        """Who may get work, while it is known; see policy/candidates.py."""
        self.unsettled: tuple[NodeRecord, ...] | None = None
        """Nodes that have not settled in their role; None once a node has changed."""
        self.late_from_s: float | None = None
        """No node that is on time becomes late before; None once a node has changed."""
        self.turns = dict.fromkeys(Phase, 0)
        """Requests that round robin has placed."""
        self.output_tokens = 0.0
        """Mean output of recent requests; 0 before the first."""
        self.uncovered: tuple[Phase, ...] | None = None
        """Phases that no alive node has as its role, so that others serve them. None until the
        cluster was whole once."""

    @property
    def split(self) -> Split:
        """As the router sends, nodes that are lost included."""
        return Split(*_counts(node.role for node in self.nodes.values()))

    @property
    def settled_split(self) -> str:
        """As the work on the nodes still is. Not a Split: while several nodes change at once it
        may pass through a count of zero."""
        prefill, decode = _counts(node.settled_role for node in self.nodes.values())
        return f"{prefill}P{decode}D"

    def requests_of(self, node: NodeRecord) -> list[RequestRecord]:
        """In the order they came to the node."""
        return [self.requests[request_id] for request_id in node.requests]

    def prefills_of(self, node: NodeRecord) -> list[RequestRecord]:
        """Requests whose prompt it still has to compute, running ones included."""
        return list(node.load.prefills.values())

    def decodes_of(self, node: NodeRecord) -> list[RequestRecord]:
        """Requests that it decodes, or will."""
        return [r for r in self.requests_of(node) if r.decode_node == node.name]

    def count(self, record: RequestRecord) -> None:
        """Bring the loads of its nodes up to date with a request that is on them."""
        for node, share in record.shares:
            node.standing = None
            node.load.add(share, -1)
            if not record.awaits_prefill:
                node.load.prefills.pop(record.request_id, None)
        record.shares = shares_of(self.nodes, record)
        for node, share in record.shares:
            node.standing = None
            node.load.add(share, 1)
            if record.awaits_prefill and node.name == record.prefill_node:
                # In its old place, if it has one.
                node.load.prefills[record.request_id] = record

    def recount(self, record: RequestRecord) -> None:
        """The same, for one that has changed; nothing for one that is on no node."""
        if record.shares:
            self.count(record)

    def uncount(self, record: RequestRecord) -> None:
        """The request is on no node (any more)."""
        for node, share in record.shares:
            node.standing = None
            node.load.add(share, -1)
            node.load.prefills.pop(record.request_id, None)
        record.shares = ()

    def nodes_changed(self) -> None:
        """A node came, went, or has another role: who may get work is to be found again, and
        what else is kept of all nodes."""
        self.eligible = self.unsettled = self.late_from_s = None
        for node in self.nodes.values():
            node.standing = None

    def running_on(self, node: NodeRecord) -> int:
        """Requests that have begun and are there now: what a change of role must wait for."""
        return sum(_is_running(r, node.name) for r in self.requests_of(node))

    def queued_on(self, node: NodeRecord) -> int:
        """Requests that have not begun there, in either phase."""
        return len(node.requests) - self.running_on(node)

    def token_s(self, node: NodeRecord) -> float:
        """Seconds of prefill for an uncached token on that node."""
        prior = self.config.prior_token_s
        if node.speed.tokens:
            return node.speed.token_s(prior)
        if self._pooled_token_s is None:
            self._pooled_token_s = pooled_token_s([n.speed for n in self.nodes.values()], prior)
        return self._pooled_token_s

    def observe_iteration(self, node: NodeRecord, sample: IterationSample) -> None:
        """Learn the node's speed."""
        node.speed.observe(sample)
        node.pace.observe(sample)
        self._pooled_token_s = None

    def prefill_s(
        self, node: NodeRecord, uncached_tokens: float, pairs: float, restored_tokens: float = 0.0
    ) -> float:
        """Seconds of that node for a prompt (t_P of section 4): of its share of iterations' fixed
        cost, its new tokens, their query-key pairs, and what is restored from host memory."""
        return at_rates(self.prefill_rates(node), uncached_tokens, pairs, restored_tokens)

    def prefill_rates(self, node: NodeRecord) -> Rates:
        """By the node's model; without one, by its seconds a token alone."""
        model = node.coefficients
        if model is None:
            return 0.0, self.token_s(node), 0.0, 0.0
        return prefill_rates(model, node.tokens_per_iteration)

    def decode_s(self, node: NodeRecord) -> float:
        """Seconds of a decode iteration of all that the node decodes now; 0 for none."""
        if not node.load.decoding:
            return 0.0
        model = node.coefficients
        return model.decode_s(node.load.decoding) if model else node.pace.iteration_s

    def observe_output(self, tokens: int) -> None:
        """Learn how long outputs are."""
        if tokens > 0:
            before = self.output_tokens or tokens
            self.output_tokens = before + OUTPUT_WEIGHT * (tokens - before)

    def fetch_s(self, node: NodeRecord, blocks: int) -> float:
        """Seconds until the node has so many blocks of peers, what it fetches already included."""
        speed = node.fetches if node.fetches.weight else self.fetches
        return speed.fetch_s(blocks, self.config.prior_fetch)

    def observe_fetch(self, node: NodeRecord, blocks: int, fetch_s: float) -> None:
        """A fetch of that node has ended; blocks: those that it had to queue behind included."""
        node.fetches.observe(blocks, fetch_s)
        self.fetches.observe(blocks, fetch_s)


def _is_running(record: RequestRecord, node: str) -> bool:
    if record.stage is Stage.DECODE:
        return record.decode_node == node
    return record.stage is not Stage.WAITING and record.prefill_node == node


def _counts(roles: Iterable[Role]) -> tuple[int, int]:
    listed = list(roles)
    prefill = listed.count(Role.PREFILL)
    return prefill, len(listed) - prefill


def initial_roles(config: PolicyConfig) -> dict[str, Role]:
    """node -> role. Raises UsageError (EV-1103) when split and number of nodes differ."""
    split = parse_split(config.split)
    fit_split(split, len(config.nodes))
    ordered = {
        name: Role.PREFILL if index < split.prefill_nodes else Role.DECODE
        for index, name in enumerate(config.nodes)
    }
    kept = {n: Role(r) for n, r in config.roles.items() if n in ordered}
    both = set(kept.values()) == set(Role) and len(kept) == len(ordered)
    return {name: kept[name] for name in ordered} if both else ordered


def fit_split(split: Split, nodes: int) -> None:
    """Raises UsageError (EV-1103) unless the split has exactly that many nodes."""
    if split.nodes == nodes:
        return
    raise UsageError(
        what=f"split {split} does not fit this cluster",
        why=f"it is for {split.nodes} nodes, the cluster has {nodes}",
        next_step=f"choose prefill and decode nodes that add up to {nodes}",
        code="EV-1103",
    )
