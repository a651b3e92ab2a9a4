"""The rules of section 3 block by block: slow, short, and sharing no line with the directory."""

from types import SimpleNamespace as Record


def new_branch(version, kind, now):
    state = {"seen": now, "live": True, "latest": 0, "open": 0, "asked": {}}
    return Record(version=version, kind=kind, context=[], hold={}, **state)  # hold: (phase, block)


def common(left, right):
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


class Naive:
    def __init__(self):
        self.copies, self.branches, self.ended, self.number = {}, {}, set(), 0
        self.requests, self.closed = {}, {}

    def counts(self):  # (node, block) -> [live references, suspect ones, leases]
        found = {}
        each = [(not b.live, n, k) for b in self.branches.values() for (_, k), n in b.hold.items()]
        leases = [(r, lease) for r in self.requests.values() for lease in r.leases]
        each += [(2, n, key) for r, (_, n, s, e) in leases for key in r.path[s:e]]
        for slot, node, key in each:
            found.setdefault((node, key), [0, 0, 0])[slot] += 1
        return found

    def lead(self, node, keys, promised=False):  # leading blocks; node None: anywhere
        have = {k for (n, k) in self.copies if node in (None, n)}
        lent = [r for r in self.requests.values() if r.promise and node in (None, r.promise[0])]
        have.update(k for r in lent if promised for k in r.path[r.promise[1] : r.prompt])
        return next((i for i, key in enumerate(keys) if key not in have), len(keys))

    def arrive(self, rid, keys, now, key=None, version=None, kind="root", final=False):
        b = self.branches.get(key) or new_branch(version or 0, kind, now)
        if not key or key in self.ended or (version is not None and version < b.version):
            b = None
        self.number += 1
        self.requests[rid] = Record(number=self.number, path=list(keys), prompt=len(keys))
        vars(self.requests[rid]).update(branch=b, final=final, nodes={}, promise=None, leases=[])
        if b:
            self.branches[key], b.context, b.latest = b, list(keys), self.number
            b.hold = {at: n for at, n in b.hold.items() if at[1] in keys}
            b.version, b.open, b.seen, b.live = max(b.version, version or 0), b.open + 1, now, True

    def scope(self, r):  # blocks of its prompt that are its branch's context
        at_work = r.branch in self.branches.values()
        return r.path[: min(r.prompt, common(r.path, r.branch.context))] if at_work else []

    def place(self, rid, phase, node):
        r = self.requests[rid]
        if r.nodes.get(phase, node) != node:
            self.failed(r, phase)
        r.nodes[phase] = node
        for key in self.scope(r):
            r.branch.hold.setdefault((phase, key), node)

    def moved(self, r, phase):
        r.leases = [lease for lease in r.leases if lease[0] != phase]
        if r.branch and phase in r.nodes and r.branch.asked.get(phase, 0) <= r.number:
            r.branch.asked[phase] = r.number
            r.branch.hold.update({(phase, k): r.nodes[phase] for k in self.scope(r)})

    def failed(self, r, phase):
        node = r.nodes.pop(phase, None)
        for at in ((phase, key) for key in self.scope(r)):
            if r.branch.hold.get(at) == node and (node, at[1]) not in self.copies:
                r.branch.hold.pop(at, None)

    def close(self, rid, now, completed):
        r = self.closed[rid] = self.requests.pop(rid)
        if r.branch:
            r.branch.open, r.branch.seen, r.branch.live = r.branch.open - 1, now, True
            if r.final and completed:
                self.end(next((k for k, b in self.branches.items() if b is r.branch), None))

    def end(self, key):
        self.ended |= {key} if self.branches.pop(key, None) else set()

    def stored(self, node, tier, path, first, rid):  # path[first:] is what was stored
        for key in path[first:]:
            self.copies.setdefault((node, key), set()).add(tier)
        r = self.requests.get(rid) or self.closed.get(rid)
        follows = lambda old: first <= len(old) < len(path) and path[: len(old)] == old  # noqa: E731
        if rid in self.requests and follows(r.path):
            r.path = list(path)
        b = r and r.branch in self.branches.values() and r.branch.latest == r.number and r.branch
        if b and len(b.context) >= r.prompt and follows(b.context):
            old, b.context = b.context, list(path)
            phase = next((f for f in "DP" if r.nodes.get(f) == node), None)
            for key in path[len(old) :] if phase else ():
                b.hold.setdefault((phase, key), node)

    def evicted(self, node, tier, keys):
        gone = [k for k in dict.fromkeys(keys) if tier in self.copies.get((node, k), ())]
        for key in gone:
            self.copies[node, key].discard(tier)
        self.copies = {at: tiers for at, tiers in self.copies.items() if tiers}
        return len(gone)

    def forget(self, node, phases="PD", relabel=False):
        for b in self.branches.values():
            for phase, key in [at for at, n in b.hold.items() if relabel and n == node]:
                if phase == "D" and not b.open:
                    b.hold.setdefault(("P", key), node)
            b.hold = {at: n for at, n in b.hold.items() if n != node or at[0] not in phases}

    def lost(self, node):
        self.forget(node)
        self.copies = {at: tiers for at, tiers in self.copies.items() if at[0] != node}
        for r in [*self.requests.values(), *self.closed.values()]:
            r.nodes = {f: n for f, n in r.nodes.items() if n != node}
            r.leases = [lease for lease in r.leases if lease[1] != node]
            r.promise = None if r.promise and r.promise[0] == node else r.promise

    def fork(self, key, parent, now):
        b, source = new_branch(0, "fork", now), self.branches[parent]
        b.hold, b.context, self.branches[key] = dict(source.hold), list(source.context), b
