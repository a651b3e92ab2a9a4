"""What the pool of host memory does for requests: counted from facts as they pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from evctl.control.roster import Engine
from evctl.core.events import Event, FetchAheadEnded, FetchEnded, FromNode
from evctl.core.pool_status import AheadStatus, NodePool, PoolStatus, TierOccupancy
from evctl.policy.plausible import fetch_can_be
from evctl.policy.state import ClusterState, StepResult

MOST_CAUSES = 32
"""The contract names a few; an engine that makes up others fills no memory."""
OTHER = "other"


class PoolMeasures:
    """Totals since the start of this life of the control plane."""

    def __init__(self) -> None:
        self._blocks = dict.fromkeys(("l1", "own_l2", "peer_l2", "ahead"), 0)
        self._bytes = dict.fromkeys(("peer_l2", "ahead"), 0)
        self._recomputed: Counter[str] = Counter()
        self._fetches = 0
        self._fetch_s = 0.0
        self._exposed_s = 0.0
        self._queued_s = 0.0

    def observe(self, now_s: float, event: Event, result: StepResult) -> None:
        """An observer of the writer."""
        del now_s, result
        if not isinstance(event, FromNode):
            return
        fact = event.fact
        if isinstance(fact, FetchEnded | FetchAheadEnded) and not fetch_can_be(fact):
            return
        if isinstance(fact, FetchEnded):
            self._fetched(fact)
        elif isinstance(fact, FetchAheadEnded):
            self._from_peers("ahead", fact)

    def status(self, state: ClusterState, engines: Mapping[str, Engine]) -> PoolStatus:
        """The blocks of a node's own tiers count with the size that all blocks have."""
        paths = {path: count for path, count in self._blocks.items() if path != "ahead"}
        sizes = [engine.hello.layout.block_bytes for engine in engines.values()]
        block_bytes = sizes[0] if sizes else 0
        own = {path: count * block_bytes for path, count in paths.items()}
        hidden = 1.0 - self._exposed_s / self._fetch_s if self._fetch_s else None
        return PoolStatus(
            fetches=self._fetches,
            fetched_blocks=paths,
            fetched_bytes={**own, "peer_l2": self._bytes["peer_l2"]},
            fetch_s=self._fetch_s,
            exposed_s=self._exposed_s,
            fetch_queued_s=self._queued_s,
            share_hidden=hidden,
            recomputed_blocks=dict(sorted(self._recomputed.items())),
            ahead=self._ahead(state),
            nodes=tuple(node_pool(engines[name]) for name in sorted(engines)),
        )

    def _ahead(self, state: ClusterState) -> AheadStatus:
        outcomes = msgspec.structs.asdict(state.ahead.outcomes)
        return AheadStatus(
            outcomes={k: v for k, v in outcomes.items() if not k.endswith("_blocks")},
            blocks=self._blocks["ahead"],
            bytes=self._bytes["ahead"],
            under_way_blocks=state.ahead.blocks,
        )

    def _fetched(self, fact: FetchEnded) -> None:
        self._blocks["l1"] += fact.l1_blocks
        self._blocks["own_l2"] += fact.own_blocks
        self._from_peers("peer_l2", fact)
        self._fetches += 1
        self._fetch_s += fact.fetch_s
        self._exposed_s += min(fact.exposed_s, fact.fetch_s)
        self._queued_s += fact.queued_s
        if fact.missed_blocks > 0:
            cause = fact.cause or OTHER
            known = cause in self._recomputed or len(self._recomputed) < MOST_CAUSES
            self._recomputed[cause if known else OTHER] += fact.missed_blocks

    def _from_peers(self, path: str, fact: FetchEnded | FetchAheadEnded) -> None:
        self._blocks[path] += sum(source.blocks for source in fact.peers)
        self._bytes[path] += sum(source.bytes for source in fact.peers)


def node_pool(engine: Engine) -> NodePool:
    """By its last heartbeat; before that, what its Hello said."""
    load, hello = engine.load, engine.hello
    l1 = (load.l1_total_blocks, load.l1_used_blocks) if load else (hello.l1_blocks, 0)
    l2 = (load.l2_total_blocks, load.l2_used_blocks) if load else (hello.l2_blocks, 0)
    return NodePool(
        engine.node,
        _tier(engine, "l1", *l1),
        _tier(engine, "l2", *l2),
        pins=_told(engine, "l2_pins"),
        loans=_told(engine, "loans"),
        write_queue_blocks=_told(engine, "l2_write_queue_blocks"),
    )


def _told(engine: Engine, name: str) -> int | None:
    return int(engine.counters[name]) if name in engine.counters else None


def _tier(engine: Engine, tier: str, total: int, used: int) -> TierOccupancy:
    counters = engine.counters
    names = [f"{tier}_class{number}_blocks" for number in range(3)]
    classes = tuple(int(counters[name]) for name in names if name in counters)
    quarantined = int(counters.get(f"{tier}_quarantined_blocks", 0))
    return TierOccupancy(total, used, classes if len(classes) == 3 else (), quarantined)
