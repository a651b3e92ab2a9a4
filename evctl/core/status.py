"""What a cluster looks like from outside: the values of the admin API, the CLI and the TUI."""

from __future__ import annotations

import msgspec

from evctl.core.brain_status import BrainStatus
from evctl.core.kv_status import KvStatus
from evctl.core.moves import Move as Move
from evctl.core.pool_status import PoolStatus
from evctl.core.predictions import PredictionStatus
from evctl.core.times_status import NodeTimes
from evctl.core.transitions import Transition

API_VERSION = "evctl/v1"


class NodeStatus(msgspec.Struct, frozen=True):
    """One node. target_role: P or D, by which the router sends work now. role: the settled one,
    whose work is all that runs there; the two differ from a change until the old work has ended.

    state: ok, late (no heartbeat for a while), lost; of one that has not joined in this life of
    the control plane: starting while its process lives, else absent. age_s: since its last
    heartbeat, 0 where there was none.
    queue: requests that wait there now, for their prefill to begin or to be handed over to it; the
    nodes' queues add up to what waits in both phases. running: in a batch. l1, l2: used share, 0
    to 1.
    blocks: cached there, whatever the tiers; referenced: share of them that a branch or a
    transfer refers to, None without any.
    """

    name: str
    role: str
    target_role: str
    state: str
    boot_id: str
    age_s: float
    queue: int
    running: int
    running_prefill: int
    running_decode: int
    l1: float
    l2: float
    pid: int | None = None
    blocks: int = 0
    referenced: float | None = None


class QueueStatus(msgspec.Struct, frozen=True):
    """Waits of one phase over the last minute, in seconds; None where nothing was seen."""

    waiting: int
    running: int
    wait_p50_s: float | None
    wait_p95_s: float | None


def length_of(seconds: float) -> str:
    """Of a span that a person gave in whole units: 40 s, 90 s, 30 min, 8 h."""
    for size_s, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.3g} {unit}"
    return f"{seconds:.3g} s"


class SplitWrite(msgspec.Struct, frozen=True):
    """An accepted write to split and mode: by whom, why. before, after: the splits aimed at,
    equal when no node moves. generation: the cluster's after it. forced: within the cooldown.
    for_s: of a hold that ends by itself, seconds from the write. change: number of the Transition
    that its moves make, 0 without any."""

    mode: str
    before: str
    after: str
    by: str
    reason: str
    generation: int
    moves: tuple[Move, ...] = ()
    forced: bool = False
    for_s: float | None = None
    change: int = 0

    def told(self) -> str:
        """As one line of the event log."""
        split = f"{self.before} -> {self.after}" if self.moves else f"stays {self.after}"
        why = f": {self.reason}" if self.reason else ""
        forced = ", forced within the cooldown" if self.forced else ""
        lasts = f" for {length_of(self.for_s)}" if self.for_s is not None else ""
        told = f"({self.mode}{lasts}, generation {self.generation}{forced})"
        return f"split {split} by {self.by}{why} {told}"


class EventRecord(msgspec.Struct, frozen=True):
    """One line of the event log. sequence rises by one; time_s: seconds since the epoch.

    write: of a write to split and mode, in parts; `what` tells the same. transition: of a change
    of the split that ended, likewise.
    """

    sequence: int
    time_s: float
    level: str
    what: str
    node: str = ""
    request_id: str = ""
    write: SplitWrite | None = None
    transition: Transition | None = None


class Refusal(msgspec.Struct, frozen=True):
    """An engine that was turned away and has not joined since.

    number: rises with each refusal in a life of the control plane. node: "" where the key is no
    node's. public_key: what the connection proved, as z85.
    """

    number: int
    node: str
    public_key: str
    code: str
    why: str


class ClusterStatus(msgspec.Struct, frozen=True):
    """One screen. split: by settled roles; target_split: by those that the router sends by.

    mode: auto, hold (split set by hand) or advise. generation rises with every accepted write.
    held_until_s: of a hold that ends by itself, seconds since the epoch; the mode is mode_after
    then. transition: the change of the split that is under way. brain: what the planner decided
    last, and the execution-time models; None of a control plane that does not tell.
    gateway, admin: URLs. in_flight: requests anywhere. epoch: life of the control plane. times:
    what is known of how long each node takes.
    """

    cluster: str
    gateway: str
    admin: str
    model: str
    split: str
    target_split: str
    mode: str
    generation: int
    epoch: int
    sequence: int
    in_flight: int
    prefill: QueueStatus
    decode: QueueStatus
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    requests_done: int
    requests_failed: int
    requests_rejected: int
    throughput_rps: float
    nodes: tuple[NodeStatus, ...]
    held_by: str = ""
    hold_reason: str = ""
    refusals: tuple[Refusal, ...] = ()
    kv: KvStatus | None = None
    pool: PoolStatus | None = None
    times: tuple[NodeTimes, ...] = ()
    held_until_s: float | None = None
    mode_after: str = ""
    transition: Transition | None = None
    predictions: PredictionStatus | None = None
    brain: BrainStatus | None = None


class SplitChange(msgspec.Struct, frozen=True):
    """What a write to the split does, or would do (plan).

    unchanged: split, mode and reason are so already, so nothing is, or would be, written.
    refused_until_s: of a plan, seconds since the epoch; until then the write is refused, unless
    forced, for the last change settled less than cooldown_s ago. None where it would be taken.
    settling: that change is still under way, so that it is refused for longer than that.
    """

    before: str
    after: str
    moves: tuple[Move, ...]
    generation: int
    applied: bool
    unchanged: bool = False
    refused_until_s: float | None = None
    cooldown_s: float = 0.0
    settling: bool = False


class WatchFrame(msgspec.Struct, frozen=True):
    """One line of /admin/v1/watch (newline-delimited JSON).

    The first has kind "snapshot"; later ones "status" (a full status, at most twice a second)
    or "events". sequence counts frames of this stream: a gap means resnapshot.
    """

    kind: str
    sequence: int
    status: ClusterStatus | None = None
    events: tuple[EventRecord, ...] = ()


class ErrorBody(msgspec.Struct, frozen=True):
    """The error of an admin call: the same four things that EvctlError carries."""

    code: str
    what: str
    why: str
    next: str
    exit_code: int
