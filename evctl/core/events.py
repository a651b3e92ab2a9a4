"""Facts that reach the reducer. They hold ids, keys and lengths, never text or tokens."""

from __future__ import annotations

import msgspec

from evctl.core.branches import BranchSignal
from evctl.core.costs import Coefficients
from evctl.core.kv import FetchSource
from evctl.core.split import Phase


class Fact(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of all facts; the class name is the tag."""


class PrefillStarted(Fact, frozen=True, tag=True):
    """Prefill of a request began: cached_tokens were found in L1, uncached_tokens must run."""

    request_id: str
    cached_tokens: int
    uncached_tokens: int


class FirstToken(Fact, frozen=True, tag=True):
    """The prompt is computed and one token sampled."""

    request_id: str
    prompt_tokens: int


class RequestDone(Fact, frozen=True, tag=True):
    """Output ended. reason: a FinishReason."""

    request_id: str
    reason: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    detail: str = ""


class KvStored(Fact, frozen=True, tag=True):
    """Blocks became readable: `keys` in order (16 bytes each), children of `parent`, in tier 1
    or 2.

    request_id lets the directory find the run by the request's cursor, also when `parent`
    lies in the middle of one.
    """

    request_id: str
    tier: int
    parent: bytes
    keys: bytes


class KvHeld(Fact, frozen=True, tag=True):
    """A path of blocks that a node held when it joined; `keys` in order (16 bytes each). It may
    repeat what another one said.

    from_root: root_key is the parent of first blocks. If not, it names a block, of which the
    path is a continuation: one that the directory knows, or the path is of no use. Paths come
    ancestors first, and each goes on from the one before it or from an ancestor of that.
    """

    tier: int
    root_key: bytes
    keys: bytes
    from_root: bool = True


class KvEvicted(Fact, frozen=True, tag=True):
    """Blocks (16 bytes each) are no longer readable in a tier; sent before their slots are
    reused."""

    tier: int
    keys: bytes


class TransferDone(Fact, frozen=True, tag=True):
    """A request's KV arrived at `destination` and was verified there."""

    request_id: str
    destination: str
    blocks: int
    bytes_sent: int
    held_blocks: int


class TransferFailed(Fact, frozen=True, tag=True):
    """A request's KV did not arrive whole at `destination`."""

    request_id: str
    destination: str
    reason: str


class IterationSample(Fact, frozen=True, tag=True):
    """One iteration of the loop: its busy time and the regressors of Eq. 1 and 2.

    busy_s: what the node worked for it; on a CPU the CPU time of the iteration's thread, so that
    what shares the machine does not count. Of several ranks, the first one's: waiting for others
    does not count, and all share the work alike. attention_pairs: of the chunks, and for each
    request that decodes one for each token of its context. restored_tokens: copied from host
    memory into L1 since the iteration before.
    """

    phase: Phase
    busy_s: float
    prefill_tokens: int
    attention_pairs: float
    restored_tokens: int
    decode_requests: int


class Recalled(Fact, frozen=True, tag=True):
    """The engine gave a request back that it had not begun; nothing of it is left there."""

    request_id: str


class RecallDenied(Fact, frozen=True, tag=True):
    """The request had begun (or ended) when the recall came: it finishes in place."""

    request_id: str


class FetchEnded(Fact, frozen=True, tag=True):
    """A waiting request's KV is in L1, or as much of it as will come. Sent once for a request
    that missed part of its prompt in L1 and had somewhere to look; before PrefillStarted.

    l1_blocks, own_blocks, peers: leading blocks of the prompt by where they were found: L1 at
    the start, this node's L2, each peer's L2. fetch_s: how long any of
    it was on its way: from the decision to fetch to the last block verified in L1, without the
    time in which all of it lay in L2 and the request had no slots, which says nothing of a
    fetch's speed; queued_s: that time. exposed_s: of fetch_s, how long the request could have run
    but for its KV.
    missed_blocks: planned and to be computed instead; cause: why ("" if none): "deadline",
    "unreachable", "gone", "failed", "corrupt", "no_room", "cancelled".
    """

    request_id: str
    l1_blocks: int
    own_blocks: int
    peers: tuple[FetchSource, ...]
    fetch_s: float
    exposed_s: float
    missed_blocks: int
    cause: str = ""
    queued_s: float = 0.0


class FetchAheadEnded(Fact, frozen=True, tag=True):
    """A FetchAhead is over: what came into L2, and what did not (causes as in FetchEnded)."""

    ticket: str
    peers: tuple[FetchSource, ...]
    fetch_s: float
    missed_blocks: int
    cause: str = ""


EngineFact = (
    PrefillStarted
    | FirstToken
    | RequestDone
    | KvStored
    | KvHeld
    | KvEvicted
    | TransferDone
    | TransferFailed
    | IterationSample
    | Recalled
    | RecallDenied
    | FetchEnded
    | FetchAheadEnded
)


# ---------------------------------------------------------------- facts of the control plane


class RequestArrived(Fact, frozen=True, tag=True):
    """A request passed the gateway's checks. block_keys: 16 bytes a full block, concatenated.

    branch: None when the client sent no signal. max_output_tokens: the most the client takes.
    """

    request_id: str
    tenant: str
    branch: BranchSignal | None
    prompt_tokens: int
    max_output_tokens: int
    root_key: bytes
    block_keys: bytes


class RequestCancelled(Fact, frozen=True, tag=True):
    """The client left or the gateway gave up."""

    request_id: str


class BranchSignalled(Fact, frozen=True, tag=True):
    """A branch's harness says something without a request. what: end, rewrite or fork (then
    the signal's branch is the new one)."""

    tenant: str
    what: str
    signal: BranchSignal


class DispatchFailed(Fact, frozen=True, tag=True):
    """A node refused a request. retry: whether another node, or the same later, may take it."""

    request_id: str
    node: str
    code: str
    reason: str
    retry: bool


class NodeJoined(Fact, frozen=True, tag=True):
    """A node said Hello: a first life, or a new one (another boot_id) that lost all KV."""

    node: str
    boot_id: str
    l1_blocks: int
    block_tokens: int
    max_running: int
    context_tokens: int
    l2_blocks: int = 0


class NodeReport(Fact, frozen=True, tag=True):
    """A heartbeat: what the node is busy with."""

    node: str
    boot_id: str
    waiting_prefill: int
    running_prefill: int
    waiting_decode: int
    running_decode: int
    l1_used_blocks: int
    prefill_tokens_left: int
    l2_used_blocks: int = 0


class NodeLost(Fact, frozen=True, tag=True):
    """A node's process is gone, or it has been silent for too long."""

    node: str
    boot_id: str
    reason: str


class Override(Fact, frozen=True, tag=True):
    """A person or program sets the mode: "auto", "hold" or "advise". "hold" needs split ("4P5D").
    forced: although the cooldown was not over. until_s: when a hold ends by itself, on the
    reducer's clock. generation: only if that is the present one."""

    mode: str
    split: str
    by: str
    reason: str
    forced: bool = False
    until_s: float | None = None
    generation: int | None = None


class CoefficientsFitted(Fact, frozen=True, tag=True):
    """The execution-time model of a node was fitted (source "fitted"), kept from an earlier life
    of the same model, hardware and engine ("kept"), or made whole with the terms of a node that is
    alike ("borrowed"). The fit is not bit-stable over processors, so it is an event and not a
    step."""

    node: str
    coefficients: Coefficients
    source: str


class Tick(Fact, frozen=True, tag=True):
    """Time passed; nothing else happened."""


ControlFact = (
    RequestArrived
    | RequestCancelled
    | BranchSignalled
    | DispatchFailed
    | NodeJoined
    | NodeReport
    | NodeLost
    | Override
    | CoefficientsFitted
    | Tick
)


class FromNode(Fact, frozen=True, tag=True):
    """An engine's fact, with the life of the node that it happened on."""

    node: str
    boot_id: str
    fact: EngineFact


Event = ControlFact | FromNode
"""Everything that the reducer is fed."""
