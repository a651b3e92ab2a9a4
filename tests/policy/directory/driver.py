"""Random steps through the directory and through the block model, compared after each."""

from __future__ import annotations

from collections import Counter

from evctl.core.split import Phase
from evctl.policy.directory import Directory, DirectoryConfig, Signal, check
from tests.policy.directory.comparison import NODES, Compared
from tests.policy.directory.naive import Naive, common
from tests.policy.directory.world import TENANTS

ROWS = (
    "new root", "new fork", "new sub-agent", "next request", "rewrite explicit",
    "rewrite implicit", "end", "moved P", "moved D", "failed", "role D->P", "role P->D",
    "node lost", "late version", "ended branch", "stored", "evicted", "stale boot", "duplicate",
    "suspect",
)  # fmt: skip
"""Rows of the rule table, and what the text below it adds."""


class Driver(Compared):
    """One seed, two models. step() raises AssertionError at the first difference."""

    def __init__(self, seed: int, *, relabel: bool = False) -> None:
        super().__init__(seed)
        self.relabel = relabel
        self.config = DirectoryConfig(
            relabel=relabel, suspect_after_s={"root": 1.5, "fork": 0.5, "sub-agent": 1.0}
        )
        self.rows: Counter[str] = Counter()
        self.steps = 0
        self.restart()

    def restart(self) -> None:
        """Empty models: ids of branches that ended are forgotten, so that rows stay frequent."""
        self.ours, self.naive = Directory(self.config), Naive()
        self.boots = dict.fromkeys(NODES, 0)
        self.classes: dict[tuple[str, bytes], int] = {}
        self.reset()
        self.now = 0.0
        self.asked = 0
        self.log: list[tuple[object, ...]] = []
        for node in NODES:
            self.ours.node_joined(node, f"{node}/0")
        for root in self.roots.values():
            self.ours.add_root(root)

    # ------------------------------------------------------------ steps

    def step(self) -> None:
        """One random step and all comparisons."""
        self.steps += 1
        self.now += self.random.choice((0.0, 0.1, 0.5))
        if self.steps % 250 == 0:
            self.finish()
            self.restart()
        pick = self.random.random()
        for weight, move in MOVES:
            pick -= weight
            if pick < 0:
                move(self)
                break
        self.compare()

    def arrive(self) -> None:
        r = self.random
        tenant = r.choice(TENANTS)
        root = self.roots[tenant]
        name = f"b{r.randrange(5)}" if r.random() < 0.9 else f"x{self.asked}"
        key = (tenant, name)
        branch = self.naive.branches.get(key)
        version, op, kind, parent = None, "continue", "main", ""
        if branch is None:
            op = r.choice(("continue", "fork", "spawn"))
            others = sorted(n for t, n in self.naive.branches if t == tenant)
            parent = r.choice(others) if others and op != "continue" else ""
            base = self.naive.branches[tenant, parent].context if parent else []
            if op == "spawn":
                base = base[:1]
            path = self.grow(root, base[: r.randint(0, len(base))], r.randint(0, 5))
            version = r.choice((None, 0, 2))
            row = {"continue": "new root", "fork": "new fork", "spawn": "new sub-agent"}[op]
        else:
            pick = r.random()
            path = self.grow(root, branch.context, r.randint(0, 3))
            row = "next request"
            version = r.choice((None, branch.version))
            if pick < 0.35:
                path = self.grow(root, path[: r.randint(0, len(path))], r.randint(0, 3))
                if common(path, branch.context) < len(branch.context):
                    row = "rewrite implicit"
                if r.random() < 0.35:
                    version = branch.version + r.randint(1, 2)
                    row = "rewrite explicit"
            elif pick < 0.5 and branch.version:
                version = branch.version - 1
                path = self.some_path(root)
                row = "late version"
        if key in self.naive.ended:
            row = "ended branch"
        final = r.random() < 0.05
        self.asked += 1
        rid = f"r{self.asked}"
        known = {"continue": "root", "fork": "fork", "spawn": "sub-agent"}[op]
        expected = self.expect_match(path)
        signal = Signal(name, parent=parent, op=op, version=version, kind=kind, final=final)
        if r.random() < 0.05:
            signal, key = None, None
        self.log.append(("arrive", rid, key, len(path), version, row))
        match = self.ours.arrive(rid, tenant, root, b"".join(path), self.now, signal)
        assert self.shown(match) == expected, (self.shown(match), expected)
        self.naive.arrive(rid, path, self.now, key, version, known, final)
        if r.random() < 0.1:
            self.ours.arrive(rid, tenant, root, b"".join(path), self.now, signal)
            self.rows["duplicate"] += 1
        self.rows[row] += 1

    def some_request(self) -> str | None:
        return self.random.choice(sorted(self.naive.requests)) if self.naive.requests else None

    def place(self) -> None:
        rid = self.some_request()
        if rid is None:
            return self.arrive()
        phase, node = self.random.choice("PD"), self.random.choice(NODES)
        self.log.append(("place", rid, phase, node))
        assert self.ours.place(rid, Phase(phase), node)
        self.naive.place(rid, phase, node)
        start = self.random.randint(0, 3)
        request = self.naive.requests[rid]
        if phase == "P" and self.random.random() < 0.7:
            self.ours.promise(rid, node, start)
            request.promise = (node, start)
        if self.random.random() < 0.3:
            source, end = self.random.choice(NODES), self.random.randint(0, 9)
            self.ours.lease(rid, Phase(phase), source, start, end)
            request.leases.append((phase, source, start, min(end, request.prompt)))
        self.rows["placed"] += 1

    def finish_move(self) -> None:
        rid = self.some_request()
        if rid is None:
            return self.arrive()
        placed = sorted(self.naive.requests[rid].nodes)
        phase = self.random.choice(placed or "PD")
        failed = self.random.random() < 0.25
        self.log.append(("moved", rid, phase, failed))
        if failed:
            self.ours.failed(rid, Phase(phase))
            request = self.naive.requests[rid]
            request.leases = [lease for lease in request.leases if lease[0] != phase]
            self.naive.failed(request, phase)
            self.rows["failed"] += 1
        else:
            for _ in range(self.random.choice((1, 1, 2))):
                self.ours.moved(rid, Phase(phase))
            self.naive.moved(self.naive.requests[rid], phase)
            self.rows[f"moved {phase}"] += 1
            self.late_move(rid, phase)
        if phase == "P":
            self.ours.release(rid)
            self.naive.requests[rid].promise = None

    def late_move(self, rid: str, phase: str) -> None:
        """An older request of the same branch moves after a later one did."""
        later = self.naive.requests[rid]
        older = [
            other
            for other, request in self.naive.requests.items()
            if request.branch is later.branch is not None and request.number < later.number
        ]
        if older and self.random.random() < 0.5:
            other, node = self.random.choice(older), self.random.choice(NODES)
            self.ours.place(other, Phase(phase), node)
            self.naive.place(other, phase, node)
            self.ours.moved(other, Phase(phase))
            self.naive.moved(self.naive.requests[other], phase)
            self.rows["late move"] += 1

    def close(self) -> None:
        rid = self.some_request()
        if rid is None:
            return self.arrive()
        completed = self.random.random() < 0.8
        self.log.append(("close", rid, completed))
        assert self.ours.closed(rid, self.now, completed=completed)
        self.naive.close(rid, self.now, completed)
        assert not self.ours.closed(rid, self.now)
        self.rows["closed"] += 1

    def stored(self) -> None:
        r = self.random
        node, tier, rid = r.choice(NODES), r.choice((1, 2)), ""
        if self.naive.requests and r.random() < 0.45:
            rid = r.choice(sorted(self.naive.requests))
            request = self.naive.requests[rid]
            path = list(request.path)
            tenant = self.tenant_of(path)
            node = r.choice([*request.nodes.values(), node])
            path = self.grow(self.roots[tenant], path, r.choice((0, 0, 1, 2)))
            if r.random() < 0.3:
                path = path[: r.randint(0, len(path))]
        elif self.naive.closed and r.random() < 0.4:
            rid = r.choice(sorted(self.naive.closed)[-6:])
            request = self.naive.closed[rid]
            path = list(request.branch.context if request.branch else request.path)
            node = r.choice([*request.nodes.values(), node])
            path = self.grow(self.roots[self.tenant_of(path)], path, r.choice((1, 2)))
        elif self.naive.copies and r.random() < 0.7:
            node, path = self.some_end()
            if r.random() < 0.6:  # a block that nobody has: what a decode makes
                path = [*path, self.child(path[-1], r.randrange(3, 60))]
            node = r.choice((node, node, r.choice(NODES)))
        else:
            path = self.some_path(self.roots[r.choice(TENANTS)])
        if not path:
            return self.arrive()
        ends = [i for i in range(len(path)) if i == 0 or (node, path[i - 1]) in self.naive.copies]
        first = r.choice(ends) if r.random() < 0.8 else r.randrange(len(path))
        if ends[-1] and r.random() < 0.7:  # goes on where its copy ends, as a decode does
            first = ends[-1]
            tier = r.choice(sorted(self.naive.copies[node, path[first - 1]]))
        parent = path[first - 1] if first else self.root_of(path)
        boot = f"{node}/{self.boots[node]}"
        held, needed = self.known()
        must = first == 0 or (parent in held and (node, parent) in self.naive.copies)
        must = must or (rid in self.naive.requests and parent in self.naive.requests[rid].path)
        self.log.append(("stored", node, tier, first, len(path), rid))
        keys = b"".join(path[first:])
        if r.random() < 0.04:
            assert not self.ours.stored(node, f"{node}/{self.boots[node] - 1}", tier, parent, keys)
            self.rows["stale boot"] += 1
        for _ in range(r.choice((1, 1, 1, 2))):
            taken = self.ours.stored(node, boot, tier, parent, keys, rid)
        assert taken or not must, "a parent that is there was not found"
        reachable = {a for k in [*held, *needed] for a in self.path_of(k)}
        assert not taken or first == 0 or parent in reachable, "a parent from nowhere"
        if taken:
            for key in path[first:]:
                self.appear(node, key)
            self.naive.stored(node, tier, path, first, rid)
        self.rows["stored" if taken else "unknown parent"] += 1

    def some_end(self) -> tuple[str, list[bytes]]:
        """A node and a path that it holds the end of, where a context or a copy ends, mostly."""
        nodes: dict[bytes, set[str]] = {}
        for node, key in self.naive.copies:
            nodes.setdefault(key, set()).add(node)
        above = {self.parents[key] for key in nodes}
        leaves = sorted(key for key in nodes if key not in above)
        several = [key for key in leaves if len(nodes[key]) > 1]
        key = self.random.choice(several if several and self.random.random() < 0.6 else leaves)
        return self.random.choice(sorted(nodes[key])), self.path_of(key)

    def evicted(self) -> None:
        r = self.random
        node, tier = r.choice(NODES), r.choice((1, 2))
        mine = sorted(k for n, k in self.naive.copies if n == node)
        if not mine or r.random() < 0.1:
            keys = self.some_path(self.roots[r.choice(TENANTS)])
        else:
            path = self.path_of(r.choice(mine))
            low = r.randrange(len(path))
            keys = path[low : r.randint(low + 1, len(path))]
            if r.random() < 0.3:
                keys = keys[::-1]
            if r.random() < 0.2:
                keys = r.sample(mine, r.randint(1, len(mine)))
        self.log.append(("evicted", node, tier, len(keys)))
        boot = f"{node}/{self.boots[node]}"
        gone = self.ours.evicted(node, boot, tier, b"".join(keys))
        assert gone == self.naive.evicted(node, tier, keys)
        if r.random() < 0.2:
            assert self.ours.evicted(node, boot, tier, b"".join(keys)) == 0
            self.rows["duplicate"] += 1
        if r.random() < 0.2:
            assert self.ours.evicted(node, "another", tier, b"".join(keys)) == 0
            self.rows["stale boot"] += 1
        self.rows["evicted"] += 1

    def node_lost(self) -> None:
        node = self.random.choice(NODES)
        boot = self.boots[node]
        self.log.append(("lost", node))
        assert not self.ours.node_lost(node, f"{node}/{boot - 1}")
        if self.random.random() < 0.5:
            assert self.ours.node_lost(node, f"{node}/{boot}")
        self.boots[node] += 1
        assert self.ours.node_joined(node, f"{node}/{boot + 1}")
        assert not self.ours.node_joined(node, f"{node}/{boot}")
        assert not self.ours.node_joined(node, f"{node}/{boot + 1}")
        self.naive.lost(node)
        self.rows["node lost"] += 1

    def role(self) -> None:
        node = self.random.choice(NODES)
        to = self.random.choice("PD")
        self.log.append(("role", node, to))
        self.ours.role_changed(node, Phase(to))
        if to == "P":
            self.naive.forget(node, "D", self.relabel)
            if self.random.random() < 0.5:
                self.ours.l1_emptied(node, f"{node}/{self.boots[node]}")
                self.naive.evicted(node, 1, list(self.parents))
        self.rows["role D->P" if to == "P" else "role P->D"] += 1

    def signal(self) -> None:
        r = self.random
        key = (r.choice(TENANTS), f"b{r.randrange(5)}")
        branch = self.naive.branches.get(key)
        what = r.choice(("end", "rewrite", "fork"))
        self.log.append((what, key))
        if what == "end":
            was = key in self.naive.branches
            assert self.ours.end(*key) == was
            assert not self.ours.end(*key)
            self.naive.end(key)
            self.rows["end" if was else "ended branch"] += 1
        elif what == "rewrite" and branch is not None:
            version = branch.version + r.choice((-1, 0, 1))
            fresh = version > branch.version
            assert self.ours.rewrite(*key, version, self.now) == fresh
            if fresh:
                branch.version, branch.seen, branch.live = version, self.now, True
            self.rows["rewrite explicit" if fresh else "duplicate"] += 1
        else:
            parent = f"b{r.randrange(5)}"
            fresh = branch is None and key not in self.naive.ended
            fresh = fresh and (key[0], parent) in self.naive.branches
            assert self.ours.fork(*key, parent, self.now) == fresh
            if fresh:
                self.naive.fork(key, (key[0], parent), self.now)
            self.rows["new fork" if fresh else "duplicate"] += 1

    def silence(self) -> None:
        if self.naive.requests and self.random.random() < 0.6:
            self.close()
        self.log.append(("silence",))
        self.now += self.random.choice((1.0, 4.0))
        after = self.config.suspect_after_s
        marked = 0
        for branch in self.naive.branches.values():
            if branch.live and not branch.open and branch.seen + after[branch.kind] <= self.now:
                branch.live = False
                marked += 1
        assert self.ours.mark_silent(self.now) == marked
        self.rows["suspect" if marked else "silence"] += 1

    def finish(self) -> None:
        """End and evict everything: nothing may be left."""
        for rid in list(self.naive.requests):
            self.ours.closed(rid, self.now)
        for key in list(self.ours.ledger.branches):
            self.ours.end(*key)
        for node in NODES:
            keys = [k for n, k in self.naive.copies if n == node]
            self.random.shuffle(keys)
            for tier in (1, 2):
                self.ours.evicted(node, f"{node}/{self.boots[node]}", tier, b"".join(keys))
        tree = self.ours.tree
        assert (tree.runs, tree.blocks, tree.index, tree.root.kids) == (0, 0, {}, None)
        assert not check(self.ours)
        assert all(n.classes == n.blocks == [0, 0, 0] for n in self.ours.nodes.values())


MOVES = (
    (0.285, Driver.arrive),
    (0.13, Driver.place),
    (0.11, Driver.finish_move),
    (0.065, Driver.close),
    (0.16, Driver.stored),
    (0.07, Driver.evicted),
    (0.02, Driver.node_lost),
    (0.04, Driver.role),
    (0.065, Driver.signal),
    (0.065, Driver.silence),
)  # fmt: skip
