"""The KV directory: which node holds which block, and which live branches need it.

Section 3 of the design and section 4.1 of the paper, as data. One writer; no clock (`now_s` is
handed in, seconds on any clock that does not go back), no I/O, no randomness. Keys are 16 bytes,
chained, so that a key names its whole prefix; several are passed concatenated (`bytes`), a
position is a number of blocks from the root.

**Lifecycle of a request** (what the reducer calls, in this order)

=====================  ==========================================================================
RequestArrived         `arrive(request_id, tenant, root_key, keys, now_s, signal)` -> `Match`.
                       The branch's context is this prompt from now on: extended, or rewritten.
                       Without signal, or with a late version or an ended branch, nothing counts.
routed                 `place(id, phase, node)` for both phases. Blocks that nobody holds in the
                       phase become the node's; they count once the node reports them stored.
                       `promise(id, node, start)`: siblings see the blocks before they are there.
                       `lenders(id, start, end)`: which peers hold what of the prompt in L2.
                       `lease(id, phase, source, start, end)`: what a fetch reads stays class 2,
                       until `lease_ended(id, phase)`, a move or a failure.
KvStored, KvEvicted    `stored(node, boot_id, tier, parent, keys, request_id)`, `evicted(...)`.
                       Blocks stored after the request's prompt are its output and extend the
                       branch's context; the node of its decode phase holds them.
FirstToken             `release(id)`, `moved(id, PREFILL)`: the branch's P references are now at
                       the prefill node, whoever held them.
TransferDone           `moved(id, DECODE)`: its D references are at the decode node, none at the
                       old one. TransferFailed: `failed(id, DECODE)`, then place it again.
done or cancelled      `closed(id, now_s, completed=...)`. Ends the branch if the signal was
                       final and the request was completed.
=====================  ==========================================================================

**Others**: `node_joined`, `node_lost` (with boot id), `role_changed(node, PREFILL|DECODE)`,
`l1_emptied` (a node that left decode has drained), `fork`, `rewrite`, `end` (signals without a
request), `mark_silent(now_s)` (suspect, plus mode), `deltas()` after every event: the changes of
class to send to nodes, in order. `held` takes in what a node held when it joined. `match`,
`sources`, `tier_coverage`, `lenders`, `context*` ask and change nothing.
For operators: `evctl.policy.directory.views`. For the audit: `check(directory)`.

**What holds**

1. refs(x, n) = number of (branch, phase) whose holder of x is n, while n holds x in any tier.
   Each branch has at most one holder a phase and block. `check` recomputes it.
2. Class of a copy: 2 if a live branch refers to it or a transfer reads it, 1 if only suspect
   ones do, 0 otherwise. Both tiers of a block on a node have one class. A copy that appears has
   class 2 until a delta says otherwise.
3. A move changes references only when `moved` says that it is verified; until then the old
   holder keeps them, which is what pins the source. Of two moves of one branch and phase the
   later request's wins.
4. An evicted block that is still named keeps its name, and counts again when it is stored again.
5. Every call may come twice, late or for a past life of a node: it is then ignored and counted
   in `tallies`. KvStored with an unknown parent is dropped and counted.
6. Branch ids are scoped by tenant. An ended branch stays ended (the last `tombstones` ids are
   remembered); its requests are served and count nowhere.
7. What no copy, context, promise or request needs is not in the tree. After a lost node it
   takes some calls of `deltas` until that is so again.

**Cost**: by the run, never by the block. A known branch's prompt is compared from its leaf up;
adding references costs one step for each run that they cover. Keys are chained, so that of a path
only its last run is compared, by bisection. What searches: a KvEvicted of blocks in the middle of
a copy, or that comes twice, and a KvStored whose parent is neither the end of a copy nor where
its request's blocks begin or end, look at all runs of that node (2 ms for 5,000 runs of 80
blocks; 20 ms for an eviction of more than 4 blocks). The roots of the last few thousand arrivals
are known, and those of open requests.
"""

from evctl.policy.directory.audit import check
from evctl.policy.directory.counts import RefDelta
from evctl.policy.directory.directory import Directory
from evctl.policy.directory.ledger import BranchState, Kind
from evctl.policy.directory.matching import L1Leads, Match, Piece
from evctl.policy.directory.signal import DirectoryConfig, Signal
from evctl.policy.directory.tallies import Tallies

__all__ = [
    "BranchState",
    "Directory",
    "DirectoryConfig",
    "Kind",
    "L1Leads",
    "Match",
    "Piece",
    "RefDelta",
    "Signal",
    "Tallies",
    "check",
]
