"""Every message of the wire, one tagged struct each (msgpack arrays are not used: fields may
be added within a version, never renamed or removed).

Three conversations use them:
- engine -> control: Hello, Heartbeat, Tokens, Facts, Inventory, Inspection, Refused
- control -> engine: Welcome, Peers, StartRequest, CancelRequest, RecallRequest, Reclassify,
  FetchAhead, WarmUp, GetInventory, Inspect, Stop
- engine <-> engine: ReserveKv, KvGranted, KvRefused, BlocksLanded, BlocksVerified, HandOver,
  HandOverResult, ReleaseKv, LocateKv, KvLocated, KvFetched, Ping, Pong
KV bytes never travel here; they move through the transfer port.
"""

from __future__ import annotations

import msgspec

from evctl.core.events import EngineFact
from evctl.core.kv import BlockHeader, FetchPiece, KvLayout
from evctl.core.sampling import SamplingParams, TokenLogprob


class TransferAddress(msgspec.Struct, frozen=True):
    """Where a node's registered KV memory can be reached (transfer rule 1).

    endpoint: backend-specific (shm: segment name; mooncake: host:rpc_port). base: virtual
    address of block 0 in the owner, fresh at each boot; 0 where the backend uses offsets.
    pool_offset: where in that memory L2 begins, of pool_blocks slots (evengine.pool.l2). ranks:
    processes that the node's L1 of l1_blocks slots is spread over.
    """

    backend: str
    node: str
    boot_id: str
    endpoint: str
    base: int
    size_bytes: int
    block_bytes: int
    pool_offset: int = 0
    pool_blocks: int = 0
    ranks: int = 1
    l1_blocks: int = 0


class PeerInfo(msgspec.Struct, frozen=True):
    """How one engine reaches another: peer channel, its CURVE public key, its KV memory."""

    node: str
    boot_id: str
    endpoint: str
    public_key: bytes
    transfer: TransferAddress


class Message(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of all messages; the class name is the tag."""


# ------------------------------------------------------------------ engine -> control


class Hello(Message, frozen=True, tag=True):
    """First message of an engine's life, and after every reconnect. hardware, engine: what its
    times depend on beside the model; "" where it does not say. experts, experts_per_token: routed
    ones of the model, 0 of a dense one. forwarded_tokens: that a request feeds into a decode
    iteration, more than 1 with speculation.
    """

    cluster: str
    peer: PeerInfo
    model: str
    weights_hash: str
    numerics: str
    layout: KvLayout
    l1_blocks: int
    l2_blocks: int
    max_running: int
    epoch: int
    hardware: str = ""
    engine: str = ""
    experts: int = 0
    experts_per_token: int = 0
    forwarded_tokens: float = 1.0


class Load(msgspec.Struct, frozen=True):
    """What a node is busy with, in requests, tokens and blocks."""

    waiting_prefill: int
    running_prefill: int
    waiting_decode: int
    running_decode: int
    l1_used_blocks: int
    l1_cached_blocks: int
    l1_total_blocks: int
    l2_used_blocks: int
    l2_total_blocks: int
    prefill_tokens_left: int


class Heartbeat(Message, frozen=True, tag=True):
    """Sent every second and after each Welcome; load as of the send."""

    node: str
    boot_id: str
    epoch: int
    sequence: int
    load: Load
    counters: dict[str, float]


class Tokens(Message, frozen=True, tag=True):
    """Output of one request since the last such message.

    start: index of the first of `token_ids` within the whole output, so that a receiver can
    drop what it has seen. finish: None while it goes on, else a FinishReason.
    """

    request_id: str
    start: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: str | None = None
    error: str = ""
    cached_tokens: int = 0


class Facts(Message, frozen=True, tag=True):
    """Events for the reducer, in the order in which they happened on this node."""

    node: str
    boot_id: str
    epoch: int
    events: tuple[EngineFact, ...]


class InventoryBlock(msgspec.Struct, frozen=True, array_like=True):
    """One keyed block: tier 1 or 2, references of running requests, checksum of its bytes.
    parent: the block before it, the root key for a first one; b"" where that is not known."""

    key: bytes
    tier: int
    references: int
    checksum: int
    parent: bytes = b""


class Inventory(Message, frozen=True, tag=True):
    """All keyed blocks of a node, in pages; `last` marks the final page."""

    node: str
    boot_id: str
    ticket: int
    blocks: tuple[InventoryBlock, ...]
    last: bool


class Inspection(Message, frozen=True, tag=True):
    """Answer to Inspect. `problems` is empty when every integrity check passed."""

    node: str
    boot_id: str
    ticket: int
    load: Load
    counters: dict[str, float]
    problems: tuple[str, ...]


class Refused(Message, frozen=True, tag=True):
    """A message or connection was not accepted. The sender may not repeat it unchanged."""

    code: str
    reason: str
    request_id: str = ""


# ------------------------------------------------------------------ control -> engine


class Welcome(Message, frozen=True, tag=True):
    """Answer to Hello. kv_secret keys the block hashes; epoch orders the control plane's lives."""

    cluster: str
    epoch: int
    kv_secret: bytes


class Peers(Message, frozen=True, tag=True):
    """All engines of the cluster; one that is absent is gone, and its KV with it."""

    epoch: int
    peers: tuple[PeerInfo, ...]


class StartRequest(Message, frozen=True, tag=True):
    """Run one request: prefill here, decode on `decode_node` (which may be this node).

    block_keys: 16 bytes for each full block of the prompt, concatenated; root_key: the parent
    of the first. deadline_s: seconds from receipt after which the engine gives up waiting.
    fetch: blocks of the prompt that peers hold in L2, by what the directory knows. waited_s: since
    it arrived at the control plane: one that another node gave back keeps its place by age.
    """

    request_id: str
    tenant: str
    branch: str
    generation: int
    epoch: int
    prompt: tuple[int, ...]
    root_key: bytes
    block_keys: bytes
    sampling: SamplingParams
    prefill_node: str
    decode_node: str
    deadline_s: float = 600.0
    fetch: tuple[FetchPiece, ...] = ()
    waited_s: float = 0.0


class CancelRequest(Message, frozen=True, tag=True):
    """Stop a request wherever it is; KV of finished blocks stays cached. Idempotent."""

    request_id: str


class RecallRequest(Message, frozen=True, tag=True):
    """Give back a request that has not begun; answered by the fact Recalled or RecallDenied."""

    request_id: str


class Reclassify(Message, frozen=True, tag=True):
    """Who needs the blocks of one chain: ref_class 0 nobody, 1 suspect branches only, 2 live
    ones. keys: 16 bytes each. A block that appears counts as 2 until told otherwise. epoch rises
    with every message of one life of the control plane; one that is not newer for a block is
    ignored there."""

    epoch: int
    ref_class: int
    keys: bytes


class FetchAhead(Message, frozen=True, tag=True):
    """Fetch blocks of a path into L2 before they are asked for; never in the place of a block
    that a branch needs. keys: the path from the root; pieces: positions in it. Answered by the
    fact FetchAheadEnded."""

    ticket: str
    root_key: bytes
    keys: bytes
    pieces: tuple[FetchPiece, ...]


class WarmUp(Message, frozen=True, tag=True):
    """Whether to run prefill and decode in turns instead of together, so that both kinds'
    iterations can be measured apart. Off at each Welcome."""

    on: bool


class GetInventory(Message, frozen=True, tag=True):
    ticket: int


class Inspect(Message, frozen=True, tag=True):
    """Ask for load, counters and a full integrity check."""

    ticket: int


class Stop(Message, frozen=True, tag=True):
    """End the process. drain: let running requests finish first."""

    drain: bool = False


# ------------------------------------------------------------------ engine <-> engine


class PeerMessage(Message, frozen=True):
    """About one attempt to move a request's KV. boot_id: the sender's life. attempt: chosen by
    the prefill node, never used twice in its life, so that an answer to an earlier attempt under
    the same request id cannot be taken for one to this."""

    request_id: str
    boot_id: str
    attempt: int


class ReserveKv(PeerMessage, frozen=True, tag=True):
    """Prefill node asks a decode node for room for a request's KV.

    blocks: how many the whole prompt takes, tail included; output_tokens: the most that decode
    may add, so that the receiver can tell a request that never fits from one that must wait.
    block_keys: keys of the full blocks, so that the receiver can use what it holds already.
    """

    tenant: str
    blocks: int
    prompt_tokens: int
    output_tokens: int
    block_keys: bytes


class KvGranted(PeerMessage, frozen=True, tag=True):
    """Room for a request: destination slots for blocks [held, blocks).

    held: leading blocks that the receiver already has and pinned, not to be sent.
    slots, generations: one per block after those.
    """

    held: int
    slots: tuple[int, ...]
    generations: tuple[int, ...]


class KvRefused(PeerMessage, frozen=True, tag=True):
    """No room now (retry: True), or the attempt is over (retry: False). The prefill node answers
    one that it does not know, or no longer, with ReleaseKv."""

    retry: bool
    reason: str


class BlocksLanded(PeerMessage, frozen=True, tag=True):
    """The transfer of blocks [first, first + len(headers)) returned; verify them."""

    first: int
    headers: tuple[BlockHeader, ...]


class BlocksVerified(PeerMessage, frozen=True, tag=True):
    """Result of a check: indices of blocks whose bytes are not what the header says."""

    first: int
    count: int
    bad: tuple[int, ...]


class HandOver(PeerMessage, frozen=True, tag=True):
    """The prompt is computed: decode goes on from the one token generated so far.

    request.sampling carries the seed in use, so that the sampler continues where it stopped.
    """

    request: StartRequest
    generated: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    cached_tokens: int


class HandOverResult(PeerMessage, frozen=True, tag=True):
    accepted: bool
    reason: str = ""


class ReleaseKv(PeerMessage, frozen=True, tag=True):
    """The sender gives up an attempt (cancel, failure); the receiver frees it. Idempotent.

    settled: False if a failed transfer may still write; the slots are then quarantined.
    """

    settled: bool = True


class LocateKv(Message, frozen=True, tag=True):
    """A node asks a peer where in its L2 these blocks lie, and to keep them there for `hold_s`.
    attempt: chosen by the asker, never used twice in its life."""

    boot_id: str
    attempt: int
    keys: bytes
    hold_s: float


class KvLocated(Message, frozen=True, tag=True):
    """Answer: slot and generation of each key in order, -1 for one that is not held."""

    boot_id: str
    attempt: int
    slots: tuple[int, ...]
    generations: tuple[int, ...]


class KvFetched(Message, frozen=True, tag=True):
    """The asker needs the blocks of an attempt no longer where they are. Idempotent."""

    boot_id: str
    attempt: int


class Ping(Message, frozen=True, tag=True):
    node: str
    boot_id: str
    sequence: int


class Pong(Message, frozen=True, tag=True):
    node: str
    boot_id: str
    sequence: int


AnyMessage = (
    Hello
    | Heartbeat
    | Tokens
    | Facts
    | Inventory
    | Inspection
    | Refused
    | Welcome
    | Peers
    | StartRequest
    | CancelRequest
    | RecallRequest
    | Reclassify
    | FetchAhead
    | WarmUp
    | GetInventory
    | Inspect
    | Stop
    | ReserveKv
    | KvGranted
    | KvRefused
    | BlocksLanded
    | BlocksVerified
    | HandOver
    | HandOverResult
    | ReleaseKv
    | LocateKv
    | KvLocated
    | KvFetched
    | Ping
    | Pong
)
