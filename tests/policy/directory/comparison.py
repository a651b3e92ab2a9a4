"""The directory and the block model side by side: everything must agree, block by block."""

from __future__ import annotations

from evctl.policy.directory import Directory, Match, check
from evctl.policy.directory.audit import all_runs
from evctl.policy.directory.counts import leases, lives, suspects
from evctl.policy.directory.runs import Node, Run
from tests.policy.directory.naive import Naive
from tests.policy.directory.world import TENANTS, World

NODES = ("n0", "n1", "n2", "n3")


class Compared(World):
    """Two models of one world. classes: what nodes believe after all deltas sent to them."""

    ours: Directory
    naive: Naive
    classes: dict[tuple[str, bytes], int]

    def known(self) -> tuple[set[bytes], list[bytes]]:
        """Blocks held somewhere, and those that a branch or a request needs."""
        naive = self.naive
        paths = [r.path for r in naive.requests.values()]
        paths += [b.context for b in naive.branches.values()]
        return {k for _, k in naive.copies}, [k for p in paths for k in p]

    def tenant_of(self, path: list[bytes]) -> str:
        if not path:
            return self.random.choice(TENANTS)
        root = self.root_of(path)
        return next(t for t, r in self.roots.items() if r == root)

    def appear(self, node: str, key: bytes) -> None:
        """A copy that was not there has class 2 until a delta says less."""
        if (node, key) not in self.naive.copies:
            self.classes.pop((node, key), None)

    def expect_match(self, path: list[bytes]) -> tuple[object, ...]:
        naive = self.naive
        held, needed = self.known()
        reachable = {a for k in [*held, *needed] for a in self.path_of(k)}
        known = next((i for i, k in enumerate(path) if k not in reachable), len(path))
        coverage = {n: naive.lead(n, path) for n in NODES}
        promised = {n: naive.lead(n, path, True) for n in NODES}
        return (
            known,
            naive.lead(None, path),
            naive.lead(None, path, True),
            {n: c for n, c in coverage.items() if c},
            {n: c for n, c in promised.items() if c > coverage[n]},
        )

    def shown(self, match: Match) -> tuple[object, ...]:
        return tuple(
            getattr(match, f) for f in ("known", "stored", "expected", "coverage", "promised")
        )

    def compare(self) -> None:
        """Everything, block by block."""
        for delta in self.ours.deltas():
            for at in range(0, len(delta.keys), 16):
                self.classes[delta.node, delta.keys[at : at + 16]] = delta.block_class
        problems = check(self.ours)
        assert not problems, problems[:3]
        ours: dict[tuple[str, bytes], tuple[set[int], tuple[int, int, int]]] = {}
        for run in all_runs(self.ours):
            for tier in (1, 2):
                for node, held in run.tiers[tier - 1].items():
                    for low, high in zip(held[::2], held[1::2], strict=True):
                        for at in range(low, high):
                            key = run.key(at + 1)
                            count = self.count(run, node, at)
                            ours.setdefault((node.name, key), (set(), count))[0].add(tier)
        counts = self.naive.counts()
        theirs = {
            at: (tiers, tuple(counts.get(at, (0, 0, 0))))
            for at, tiers in self.naive.copies.items()
        }
        assert ours == theirs, _difference(ours, theirs)
        for at, (_, (live, suspect, leased)) in theirs.items():
            wanted = 2 if live or leased else 1 if suspect else 0
            assert self.classes.get(at, 2) == wanted, "a node was told wrongly"
        self.compare_branches()
        root = self.random.choice(list(self.roots.values()))
        path = self.some_path(root)
        names = sorted(self.naive.branches)
        tenant, name = self.random.choice(names) if names else ("", "")
        match = self.ours.match(b"".join(path), tenant, name)
        expected = self.expect_match(path)
        assert self.shown(match) == expected, (self.shown(match), expected)
        for tier in (1, 2):
            have = {(n, k) for (n, k), t in self.naive.copies.items() if tier in t}
            lead = {
                n: next((i for i, k in enumerate(path) if (n, k) not in have), len(path))
                for n in NODES
            }
            assert self.ours.tier_coverage(b"".join(path), tier) == {
                n: c for n, c in lead.items() if c
            }

    def count(self, run: Run, node: Node, at: int) -> tuple[int, int, int]:
        steps = (run.refs or {}).get(node, ())
        for end, count in zip(steps[::2], steps[1::2], strict=True):
            if at < end:
                return lives(count), suspects(count), leases(count)
        return 0, 0, 0

    def compare_branches(self) -> None:
        assert set(self.ours.ledger.branches) == set(self.naive.branches)
        for key, theirs in self.naive.branches.items():
            ours = self.ours.ledger.branches[key]
            assert (ours.version, ours.end) == (theirs.version, len(theirs.context)), key
            for phase in "PD":
                held = {
                    theirs.context[at]: node.name
                    for start, end, node in ours.held["PD".index(phase)]
                    for at in range(start, end)
                }
                naive = {k: n for (f, k), n in theirs.hold.items() if f == phase}
                assert held == naive, (key, phase)


def _difference(ours: dict, theirs: dict) -> list[object]:
    odd = [k for k in {**ours, **theirs} if ours.get(k) != theirs.get(k)][:2]
    return [(k, ours.get(k), theirs.get(k)) for k in odd]
