"""The KV directory as its users see it; the package's docstring is the contract."""

from __future__ import annotations

from collections import OrderedDict

from evctl.core.blocks import KEY_BYTES
from evctl.core.split import Phase
from evctl.policy.directory.copies import TIERS, Copies
from evctl.policy.directory.counts import Counts, RefDelta
from evctl.policy.directory.ledger import DECODE, PREFILL, BranchState, Ledger
from evctl.policy.directory.matching import (
    L1Leads,
    Match,
    Names,
    Piece,
    lenders,
    match,
    sources,
    tier_coverage,
)
from evctl.policy.directory.requests import Request, Requests
from evctl.policy.directory.rules import Rules
from evctl.policy.directory.runs import Node, Run
from evctl.policy.directory.signal import DirectoryConfig, Signal
from evctl.policy.directory.tallies import Tallies
from evctl.policy.directory.tree import Tree

_MOST_BOOTS = 4096
_PREFILL = Phase.PREFILL
_PRUNED_AT_ONCE = 32
"""Runs: about 0.1 ms."""


class Directory:
    """Which node holds which block, and which live branches need it. One writer, no clock."""

    def __init__(self, config: DirectoryConfig | None = None) -> None:
        self.config = config = config or DirectoryConfig()
        self.tallies = Tallies()
        self.nodes: dict[str, Node] = {}
        self.names = Names()
        self.tree = Tree()
        self.counts = Counts()
        self.ledger = Ledger(self.tree, self.counts, config.tombstones)
        self.requests = Requests(self.tree, self.counts, self.ledger, self.tallies)
        self.copies = Copies(self.tree, self.counts, self.requests)
        self.rules = Rules(self.ledger, self.tallies, config)
        self._past: OrderedDict[tuple[str, str], None] = OrderedDict()

    # ------------------------------------------------------------ nodes

    def node_joined(self, node: str, boot_id: str) -> bool:
        """A life of a node began, with no KV; an earlier one is over by that. False, and
        nothing changes, for the present life and for one that ended."""
        present = self.nodes.get(node)
        if (present is not None and present.boot_id == boot_id) or (node, boot_id) in self._past:
            self.tallies.stale_boot += 1
            return False
        if present is not None:
            self._lose(present)
        self.nodes[node] = self.names.take(node, boot_id)
        return True

    def node_lost(self, node: str, boot_id: str) -> bool:
        """A life ended: its copies and references vanish, nothing else changes."""
        present = self._life(node, boot_id)
        if present is None:
            return False
        self._lose(present)
        return True

    def role_changed(self, node: str, to: Phase) -> int:
        """The router sends other work to the node. To prefill: its D references are gone (with
        `relabel`, a waiting branch's become P references where it has none). To decode: counts
        and KV stay. Returns how many branches lost references."""
        life = self.nodes.get(node)
        if life is None or to is not Phase.PREFILL:
            self.tallies.unknown_node += life is None
            return 0
        return self.rules.reset_decode(life)

    def l1_emptied(self, node: str, boot_id: str) -> bool:
        """A node that left decode has drained and dropped its L1; its L2 stays readable."""
        life = self._life(node, boot_id)
        if life is None:
            return False
        self.copies.drop_tier(life, 1)
        return True

    # ------------------------------------------------------------ copies

    def add_root(self, root_key: bytes) -> None:
        """A parent of first blocks. Arrivals bring theirs; a rebuild from inventories adds them
        first. The last few thousand are known."""
        self.tree.add_root(root_key)

    def stored(
        self, node: str, boot_id: str, tier: int, parent: bytes, keys: bytes, request_id: str = ""
    ) -> bool:
        """KvStored: `keys`, in order, children of `parent`, became readable in tier 1 or 2.
        False when that changed nothing: a past life, or an unknown parent."""
        life = self.nodes.get(node)
        if life is None or life.boot_id != boot_id or tier not in TIERS or not keys:
            self._refuse(node, boot_id, tier)
            return False
        if len(keys) % KEY_BYTES:
            self.tallies.malformed += 1
            return False
        request = self.requests.reporting(request_id) if request_id else None
        if self.copies.store(life, tier, parent, keys, request):
            return True
        self.tallies.unknown_parent += 1
        return False

    def held(self, node: str, boot_id: str, tier: int, parent: bytes, keys: bytes) -> bool:
        """KvHeld: as `stored`, for a node's inventory, where the parent is a root, the end of a
        run or copy, or a block on the path that the node's last inventory call took in. Nothing
        is searched, so that thousands of forks cost no more than their blocks."""
        life = self._life(node, boot_id)
        if life is None or not self._tier(tier) or not keys:
            return False
        if len(keys) % KEY_BYTES:
            self.tallies.malformed += 1
            return False
        if self.copies.store_held(life, tier, parent, keys):
            return True
        self.tallies.unknown_parent += 1
        return False

    def evicted(self, node: str, boot_id: str, tier: int, keys: bytes) -> int:
        """KvEvicted: returns how many of the blocks were held there until now."""
        life = self._life(node, boot_id)
        if life is None or not self._tier(tier):
            return 0
        if len(keys) % KEY_BYTES:
            self.tallies.malformed += 1
            return 0
        gone = self.copies.evict(life, tier, keys)
        self.tallies.unknown_evicted += len(keys) // KEY_BYTES - gone
        return gone

    def deltas(self) -> list[RefDelta]:
        """Changes of class since the last call, in order, to be sent to their nodes. To be
        called after every event; it also goes on tidying up after a lost node."""
        if self.tree.doubtful:
            self.tree.prune(_PRUNED_AT_ONCE)
        return self.counts.drain()

    # ------------------------------------------------------------ requests

    def match(self, keys: bytes, tenant: str = "", branch: str = "") -> Match:
        """Where the leading blocks of a prompt are. Naming the branch saves time, nothing
        else: it starts at the branch's leaf. Changes nothing."""
        tree = self.tree
        start, keep = tree.root, 0
        if branch:
            known = self.ledger.branches.get((tenant, branch))
            if known is not None:
                start, keep = tree.shared(keys, known.run, known.end)
        path = tree.path(start)
        _, end = tree.descend(keys, start, keep, 0, path)
        return match(self.names, path, end, len(keys) // KEY_BYTES)

    def sources(self, keys: bytes, tier: int) -> list[tuple[int, int, tuple[str, ...]]]:
        """(start, end, nodes) for the pieces of a known prefix, in order: who can send what."""
        path: list[Run] = []
        _, end = self.tree.descend(keys, self.tree.root, 0, 0, path)
        return sources(path, end, tier)

    def lenders(self, request_id: str, start: int, end: int) -> list[Piece]:
        """Blocks [start, end) of a request's prompt by who holds them in L2, from its cursor up:
        the pieces follow each other without a gap, and one that nobody holds has no nodes."""
        request = self.requests.open.get(request_id)
        if request is None:
            return []
        return lenders(self.names, request.run, start, min(end, request.prompt))

    def l1_leads(self, request_id: str) -> L1Leads:
        """Who holds how many leading blocks of a request's prompt in L1. To be asked at once."""
        request = self.requests.open.get(request_id)
        if request is None:
            return L1Leads([], 0, {})
        return L1Leads(self.tree.path(request.run), request.prompt, self.nodes)

    def context(self, tenant: str, branch: str) -> Match | None:
        """Where the blocks of a branch's context are; None for a branch that is not known."""
        known = self.ledger.branches.get((tenant, branch))
        if known is None:
            return None
        return match(self.names, self.tree.path(known.run), known.end, known.end)

    def context_lenders(self, tenant: str, branch: str, start: int) -> list[Piece]:
        """As `lenders`, of a branch's context from block `start` on."""
        known = self.ledger.branches.get((tenant, branch))
        return lenders(self.names, known.run, start, known.end) if known is not None else []

    def context_keys(self, tenant: str, branch: str) -> bytes:
        """Keys of a branch's context, 16 bytes each."""
        known = self.ledger.branches.get((tenant, branch))
        if known is None:
            return b""
        keys = b"".join(bytes(run.keys) for run in self.tree.path(known.run))
        return keys[: known.end * KEY_BYTES]

    def tier_coverage(self, keys: bytes, tier: int) -> dict[str, int]:
        """node -> leading blocks that it holds in that tier alone."""
        path: list[Run] = []
        _, end = self.tree.descend(keys, self.tree.root, 0, 0, path)
        return tier_coverage(path, end, tier)

    def arrive(
        self,
        request_id: str,
        tenant: str,
        root_key: bytes,
        keys: bytes,
        now_s: float,
        signal: Signal | None = None,
    ) -> Match:
        """A request came: its branch's context is its prompt from now on, by the rules of
        section 3. Returns the match as it was before."""
        total = len(keys) // KEY_BYTES
        keys = keys[: total * KEY_BYTES]
        tree = self.tree
        if request_id in self.requests.open:
            self.tallies.duplicate_request += 1
            return self.match(keys)
        tree.add_root(root_key)
        branch = self.rules.branch_of(tenant, signal, now_s)
        keep = 0
        start: Run = tree.root
        if branch is not None:
            near = branch
            if not branch.end:
                near = self.ledger.branches.get((tenant, branch.parent), branch)
            start, keep = tree.shared(keys, near.run, near.end)
        path = tree.path(start)
        run, known = tree.descend(keys, start, keep, 0, path)
        found = match(self.names, path, known, total)
        if known < total:
            run = tree.extend(run, known, keys[known * KEY_BYTES :])
        request = self.requests.start(request_id, root_key, run, total, branch)
        if branch is not None and signal is not None:
            request.final = signal.final
            self.rules.resume(branch, min(keep, branch.end), run, total, signal.version)
            self.rules.heard(branch, now_s)
        return found

    def place(self, request_id: str, phase: Phase, node: str) -> bool:
        """The request will run that phase there. Its blocks that have no holder in the phase
        are the node's now (they count once stored); the others stay with theirs until moved."""
        request, life = self.requests.open.get(request_id), self.nodes.get(node)
        if request is None or life is None:
            self.tallies.unknown_request += request is None
            self.tallies.unknown_node += life is None
            return False
        self.requests.place(request, _index(phase), life)
        return True

    def moved(self, request_id: str, phase: Phase) -> bool:
        """The request's prompt is verified at its node of that phase (first token; transfer
        done): the branch's references in the phase move there, leases for it end."""
        request = self._request(request_id)
        if request is None:
            return False
        self.requests.moved(request, _index(phase))
        return True

    def failed(self, request_id: str, phase: Phase) -> bool:
        """The prompt will not get to its node of that phase: no reference changes, leases
        end. Place it again to go on elsewhere."""
        request = self._request(request_id)
        if request is None:
            return False
        self.requests.failed(request, _index(phase))
        return True

    def promise(self, request_id: str, node: str, start: int = 0) -> bool:
        """The node will compute or fetch the request's prompt from block `start` on (before
        that it holds it). One promise a request: a new one replaces it."""
        request, life = self._request(request_id), self.nodes.get(node)
        if request is None or life is None:
            self.tallies.unknown_node += life is None
            return False
        self.requests.promise(request, life, start)
        return True

    def release(self, request_id: str) -> bool:
        """The promise is kept or broken; idempotent."""
        request = self._request(request_id)
        if request is None:
            return False
        self.requests.release(request)
        return True

    def lease(self, request_id: str, phase: Phase, node: str, start: int, end: int) -> bool:
        """A transfer reads blocks [start, end) of the request's prompt from that node: they
        have class 2 there until the move ends, whoever refers to them."""
        request, life = self._request(request_id), self.nodes.get(node)
        if request is None or life is None:
            self.tallies.unknown_node += life is None
            return False
        self.requests.lease(request, _index(phase), life, start, end)
        return True

    def lease_ended(self, request_id: str, phase: Phase) -> bool:
        """Transfers for that phase of the request read no more: what it leases for it ends, and
        nothing else changes. Idempotent."""
        request = self._request(request_id)
        if request is None:
            return False
        self.requests.end_leases(request, _index(phase))
        return True

    def closed(self, request_id: str, now_s: float, *, completed: bool = True) -> bool:
        """The request is over. Its branch waits from now on, or ends if it was the final one
        and was answered."""
        request = self._request(request_id)
        if request is None:
            return False
        self.requests.close(request)
        branch = request.branch
        if branch is not None and branch.state is not BranchState.ENDED:
            self.rules.heard(branch, now_s)
            if request.final and completed:
                self.ledger.end(branch)
        return True

    # ------------------------------------------------------------ signals without a request

    def fork(self, tenant: str, branch: str, parent: str, now_s: float) -> bool:
        """A branch that shares all of its parent's context, until its first prompt says more."""
        return self.rules.fork(tenant, branch, parent, now_s)

    def rewrite(self, tenant: str, branch: str, version: int, now_s: float) -> bool:
        """The branch's next prompt, of that version, drops blocks; they are kept until then."""
        return self.rules.rewrite(tenant, branch, version, now_s)

    def end(self, tenant: str, branch: str) -> bool:
        """-1 on all of the branch's blocks, in both phases. Only its id is remembered."""
        found = self.rules.known(tenant, branch)
        if found is None:
            return False
        self.ledger.end(found)
        return True

    def mark_silent(self, now_s: float) -> int:
        """Branches that waited longer than their kind may become suspect (plus mode)."""
        return self.rules.mark_silent(now_s)

    # ------------------------------------------------------------ inside

    def _life(self, node: str, boot_id: str) -> Node | None:
        life = self.nodes.get(node)
        if life is None:
            self.tallies.unknown_node += 1
        elif life.boot_id != boot_id:
            self.tallies.stale_boot += 1
            return None
        return life

    def _refuse(self, node: str, boot_id: str, tier: int) -> None:
        if self._life(node, boot_id) is not None:
            self._tier(tier)

    def _tier(self, tier: int) -> bool:
        self.tallies.unknown_tier += tier not in TIERS
        return tier in TIERS

    def _request(self, request_id: str) -> Request | None:
        request = self.requests.open.get(request_id)
        self.tallies.unknown_request += request is None
        return request

    def _lose(self, life: Node) -> None:
        self.requests.forget_node(life)
        self.ledger.drop_node(life)
        self.copies.drop_node(life)
        self.names.free(life)
        del self.nodes[life.name]
        self._past[life.name, life.boot_id] = None
        if len(self._past) > _MOST_BOOTS:
            self._past.popitem(last=False)


def _index(phase: Phase) -> int:
    return PREFILL if phase is _PREFILL else DECODE
