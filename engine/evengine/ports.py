"""The ports of the engine. The loop knows nothing but the five below Engine, the agent nothing
but Engine.

Engine       serves requests in both phases                 loop.py; SGLang's scheduler
Executor     runs one iteration of the model over L1        runner/ (torch), sglang/
PrefixCache  which L1 slots hold which blocks               pool/l1.py, sglang/
HostPool     L2: blocks in this node's host memory          pool/l2.py
Transfer     moves bytes between any two nodes' KV memory   transfer/
Clock        time, injected                                 clock.py
All are called from the loop's thread only, and none may block it: what takes long is
submitted and polled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

import msgspec

from evctl.core.blocks import BlockKey
from evctl.core.kv import KvLayout
from evctl.core.sampling import SamplingParams, TokenLogprob
from evctl.policy.eviction import RefClass
from evctl.wire.messages import AnyMessage, FetchAhead, Load, StartRequest, TransferAddress

Slot = int
"""Index of one block in L1."""


class Clock(Protocol):
    def now_s(self) -> float:
        """Monotonic seconds."""
        ...

    def thread_cpu_s(self) -> float:
        """CPU seconds that the calling thread has used."""
        ...


# ---------------------------------------------------------------- Engine

PeerHandler = Callable[[str, Any], AnyMessage | None]
"""(node, message of the type it is for) -> the answer, if any."""


class Engine(Protocol):
    """Requests of both phases on one node, whatever computes them (docs/decisions/009)."""

    kv_secret: bytes

    def submit(self, start: StartRequest) -> None:
        """Queue a request. Raises EvctlError and changes nothing if it cannot run."""
        ...

    def cancel(self, request_id: str) -> bool:
        """End a request wherever it stands. False if it is not here."""
        ...

    def recall(self, request_id: str) -> None:
        """Give back a request that has not begun; answered by a fact."""
        ...

    def fetch_ahead(self, message: FetchAhead) -> None:
        """Fetch KV for a branch that is about to wake; answered by a fact."""
        ...

    def warm_up(self, on: bool) -> None:
        """Run prefill and decode in turns, never in one iteration; or as always."""
        ...

    def peer_handlers(self) -> Mapping[type, PeerHandler]:
        """What to do with peers' messages about KV, by type."""
        ...

    def peer_lost(self, node: str, boot_id: str) -> None: ...

    def turn(self) -> None:
        """Take in what arrived and what was computed, start what can be started. Short."""
        ...

    @property
    def idle(self) -> bool:
        """Whether nobody counts on this node."""
        ...

    @property
    def polled(self) -> bool:
        """Whether something is under way that neither a message nor a wake announces."""
        ...

    def load(self) -> Load: ...

    def gauges(self) -> dict[str, float]: ...

    def check_integrity(self) -> list[str]: ...


# ---------------------------------------------------------------- Executor


class PrefillChunk(msgspec.Struct, frozen=True):
    """Tokens [start, start + len(tokens)) of a sequence whose KV before `start` is in `slots`.

    slots cover positions 0 .. start + len(tokens) - 1. sample: whether this chunk ends the
    prompt, so that a next token is wanted.
    """

    request_id: str
    tokens: Sequence[int]
    start: int
    slots: Sequence[Slot]
    sample: bool


class DecodeRow(msgspec.Struct, frozen=True):
    """One token at `position`; its KV is written, then the next token is chosen."""

    request_id: str
    token: int
    position: int
    slots: Sequence[Slot]


class Draw(msgspec.Struct, frozen=True):
    """How to choose a token: `index` is how many tokens this request has drawn before."""

    sampling: SamplingParams
    index: int


class Batch(msgspec.Struct, frozen=True):
    """One iteration. `draws` holds one entry for each sampling chunk, then each row."""

    chunks: Sequence[PrefillChunk]
    rows: Sequence[DecodeRow]
    draws: Sequence[Draw]

    @property
    def request_ids(self) -> frozenset[str]:
        """Everybody it works on."""
        chunks = {chunk.request_id for chunk in self.chunks}
        return frozenset(chunks.union(row.request_id for row in self.rows))


class Sampled(msgspec.Struct, frozen=True):
    """Chosen tokens in the order of Batch.draws; logprob None unless it was asked for. busy_s: how
    long the hardware worked, where the CPU time of the thread that ran it does not say so."""

    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprob | None]
    busy_s: float | None = None


class Executor(Protocol):
    layout: KvLayout
    context_tokens: int
    vocab_size: int

    def run(self, batch: Batch) -> Sampled:
        """Compute the batch, writing KV of every given token into its slot."""
        ...


# ---------------------------------------------------------------- PrefixCache


class PrefixCache(Protocol):
    """Owner of all L1 slots: free, private to a request, or cached under a key.

    A cached block is pinned while a request uses it and evictable otherwise.
    """

    total_blocks: int

    def match(self, keys: Sequence[BlockKey]) -> list[Slot]:
        """Slots of the longest cached prefix of `keys`, pinned once more each."""
        ...

    def peek(self, keys: Sequence[BlockKey]) -> int:
        """How many leading `keys` are cached; pins nothing, changes no recency."""
        ...

    def allocate(self, count: int) -> list[Slot] | None:
        """`count` private slots, evicting unpinned blocks if need be, or None and no change.

        Whoever reserves for a peer leaves room for local work: two nodes whose slots are all
        reserved for each other's KV would wait for ever.
        """
        ...

    def publish(self, slot: Slot, key: BlockKey, parent: BlockKey, checksum: int) -> Slot:
        """Make a private, completed slot findable under `key`; the caller keeps one pin.

        If `key` is cached already, the private slot is freed and the cached one is pinned and
        returned: equal keys have equal bytes.
        """
        ...

    def release(self, slots: Sequence[Slot]) -> None:
        """Drop one pin of each cached slot; free each private one."""
        ...

    def quarantine(self, slots: Sequence[Slot], owner: str) -> None:
        """Private slots that somebody may still write to: neither free nor readable."""
        ...

    def lift_quarantine(self, owner: str) -> int:
        """Free what was quarantined for `owner`; returns how many slots."""
        ...

    def generation(self, slot: Slot) -> int:
        """How often the slot was handed out; distinguishes its uses."""
        ...

    def check_integrity(self) -> list[str]:
        """Violations of the structure's invariants, empty when sound."""
        ...


# ---------------------------------------------------------------- HostPool


class HostPool(Protocol):
    """L2: whole, keyed blocks in registered host memory, each behind a header that is checked
    whenever its bytes are used. A slot is free, being filled, held (findable, pinned while it is
    read), or resting after a read that may still write to it."""

    total_blocks: int
    block_bytes: int

    @property
    def used_blocks(self) -> int: ...

    def contains(self, keys: Sequence[BlockKey]) -> int:
        """How many leading `keys` are held."""
        ...

    def take(self, count: int, now_s: float, at_most: RefClass) -> list[Slot] | None:
        """Slots to fill, blocks up to class `at_most` evicted for them; None and no change if
        there is no such room."""
        ...

    def hold(self, slot: Slot, key: BlockKey, parent: BlockKey, depth: int, checksum: int) -> bool:
        """A filled slot is findable from now on; False if its block is held already."""
        ...

    def check_integrity(self) -> list[str]: ...


# ---------------------------------------------------------------- Transfer


class TransferState(Enum):
    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """One contiguous copy, offsets in bytes from the start of either side's KV memory."""

    local_offset: int
    remote_offset: int
    length_bytes: int


class Digest(msgspec.Struct, frozen=True):
    """What a read may compute checksums of while it copies: of every piece, as it was given, the
    `length_bytes` that follow its first `skip_bytes`."""

    skip_bytes: int
    length_bytes: int


class Outcome(msgspec.Struct, frozen=True):
    """How a ticket ended. settled: False if the backend may still write to the destination.
    checksums: of what lies here, by the read's digest, in the order of its pieces; empty where
    the backend does not compute them."""

    ticket: int
    state: TransferState
    reason: str = ""
    settled: bool = True
    checksums: Sequence[int] = ()


class Transfer(Protocol):
    """One-sided copies between this node's KV memory and any peer's, in either direction.

    The memory is registered once, by whoever opens the transfer; only close() takes that back.

    DONE proves nothing about the bytes: the reader verifies headers (rule 3). A FAILED ticket's
    destination is dirty until the peer is known to be unable to write (rule 4).
    """

    address: TransferAddress

    def connect(self, peer: TransferAddress) -> None:
        """Make a peer's life known and warm the session in the background.

        A new boot_id replaces the old one; tickets to the old life fail. After a failed ticket
        the peer is refused until this is called again: the caller has re-checked its boot id.
        """
        ...

    def disconnect(self, node: str, boot_id: str) -> None:
        """The peer's life is over; its tickets fail. Idempotent."""
        ...

    def write(self, node: str, boot_id: str, pieces: Sequence[Piece], deadline_s: float) -> int:
        """Start copying local -> remote; returns a ticket. deadline_s: seconds from now. Never
        blocks, never raises for a peer's fault: an unknown peer or full queue yields a ticket
        that fails."""
        ...

    def read(
        self,
        node: str,
        boot_id: str,
        pieces: Sequence[Piece],
        deadline_s: float,
        digest: Digest | None = None,
    ) -> int:
        """Start copying remote -> local; as write. digest: a backend that copies by itself sums
        each piece up while it is still in the cache, which saves a way through memory."""
        ...

    def when_ended(self, call: Callable[[], None]) -> None:
        """Have `call` called, on any thread, whenever there may be something to poll."""
        ...

    def poll(self) -> list[Outcome]:
        """Tickets that ended since the last call, each exactly once."""
        ...

    def close(self) -> None: ...
