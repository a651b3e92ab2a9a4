"""What the reducer wants done. The live shell does it over sockets, the simulator in memory."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from evctl.core.kv import FetchPiece
from evctl.core.planning import PlanDecision
from evctl.core.status import SplitWrite
from evctl.core.transitions import NodeMove, Transition


class Effect(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of all effects; the class name is the tag."""


class Prediction(msgspec.Struct, frozen=True):
    """What the router expects of a request on the nodes that it chose (Eq. 7, without the price
    of blocks that must make room): seconds from its dispatch.

    wait_s: until what is ahead of it is computed. service_s: of its own prompt. fetch_s: until
    what peers hold of it has come, 0 for nothing. ttft_s: to its first token, where a fetch costs
    only what is left of it after the wait.
    """

    ttft_s: float
    wait_s: float
    service_s: float
    fetch_s: float


class Dispatch(Effect, frozen=True, tag=True):
    """Send a request to its prefill node, to be decoded on the other (which may be the same).
    fetch: blocks of its prompt that the prefill node lacks and peers hold in L2, in order.
    predicted: what is expected of it there."""

    request_id: str
    prefill_node: str
    decode_node: str
    fetch: tuple[FetchPiece, ...] = ()
    predicted: Prediction | None = None


class Recall(Effect, frozen=True, tag=True):
    """Ask a node to give back a request that it has not begun."""

    request_id: str
    node: str


class Cancel(Effect, frozen=True, tag=True):
    """Stop a request on every node named."""

    request_id: str
    nodes: tuple[str, ...]


class Reject(Effect, frozen=True, tag=True):
    """Turn a request away before anything was done: answered 429 with Retry-After."""

    request_id: str
    reason: str
    retry_after_s: float


class Fail(Effect, frozen=True, tag=True):
    """End a request with an error that its client sees."""

    request_id: str
    reason: str


class SetRole(Effect, frozen=True, tag=True):
    """A node's role as the router now sees it; nothing is sent to the engine."""

    node: str
    role: str
    epoch: int


class Notice(Effect, frozen=True, tag=True):
    """Something that an operator may want to see. level: info, warn or fail."""

    level: str
    what: str
    node: str = ""
    request_id: str = ""


class RefDelta(Effect, frozen=True, tag=True):
    """Blocks of one chain on a node have another reference class from now on: 0 nobody refers
    to them, 1 suspect branches only, 2 live ones. keys: 16 bytes each. epoch rises with every
    delta; a node ignores one that is not newer for a block."""

    node: str
    epoch: int
    ref_class: int
    keys: bytes


class SignalTaken(Effect, frozen=True, tag=True):
    """What became of a BranchSignalled. why: "" when it changed something, else why not."""

    tenant: str
    branch: str
    what: str
    why: str


class SplitWritten(Effect, frozen=True, tag=True):
    """A write to split and mode was accepted; SetRole follows for each node that moves."""

    write: SplitWrite


class MoveEnded(Effect, frozen=True, tag=True):
    """One node's part of the change `number` is over: settled, superseded or lost."""

    number: int
    move: NodeMove


class TransitionEnded(Effect, frozen=True, tag=True):
    """A change of the split is over; each of its moves has ended (MoveEnded)."""

    transition: Transition


class Decided(Effect, frozen=True, tag=True):
    """The planner weighed the splits. SplitWritten and SetRole follow when it moves nodes."""

    decision: PlanDecision


class FetchAhead(Effect, frozen=True, tag=True):
    """Have a node fetch a waiting branch's blocks into its L2 before the branch wakes. keys: the
    whole path from the root; pieces: what of it to fetch, and from whom. ticket: comes back with
    FetchAheadEnded."""

    node: str
    ticket: str
    root_key: bytes
    keys: bytes
    pieces: tuple[FetchPiece, ...]


class WarmUp(Effect, frozen=True, tag=True):
    """Have a node run prefill and decode in turns while its execution-time model is to be
    fitted, or together again."""

    node: str
    on: bool


AnyEffect = (
    Dispatch
    | Recall
    | Cancel
    | Reject
    | Fail
    | SetRole
    | Notice
    | RefDelta
    | SignalTaken
    | SplitWritten
    | MoveEnded
    | TransitionEnded
    | Decided
    | FetchAhead
    | WarmUp
)


Terms = dict[str, dict[str, float]]


class Explanation:
    """Why something was decided: subject ("request r1"), choice, and each candidate's terms.

    terms may be given as a function, called when somebody reads them: most are never read, and
    thousands are kept.
    """

    __slots__ = ("_terms", "decision", "subject")

    def __init__(self, subject: str, decision: str, terms: Terms | Callable[[], Terms]) -> None:
        self.subject = subject
        self.decision = decision
        self._terms = terms

    @property
    def terms(self) -> Terms:
        if not isinstance(self._terms, dict):
            self._terms = self._terms()
        return self._terms

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Explanation):
            return NotImplemented
        mine = self.subject, self.decision, self.terms
        return mine == (other.subject, other.decision, other.terms)

    def __hash__(self) -> int:
        return hash((self.subject, self.decision))

    def __repr__(self) -> str:
        return f"Explanation({self.subject!r}, {self.decision!r}, {self.terms!r})"
