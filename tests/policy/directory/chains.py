"""Keys and a small cluster for tests of the directory."""

from __future__ import annotations

from hashlib import blake2b

from evctl.core.split import Phase
from evctl.policy.directory import Directory, DirectoryConfig, Signal, check
from evctl.policy.directory.views import block

P, D = Phase.PREFILL, Phase.DECODE
ROOT = blake2b(b"root", digest_size=16).digest()


def chain(text: str, root: bytes = ROOT) -> bytes:
    """One block a letter, each key chained on the one before."""
    keys = b""
    for letter in text:
        root = blake2b(root + letter.encode(), digest_size=16).digest()
        keys += root
    return keys


def last(text: str, root: bytes = ROOT) -> bytes:
    """Key of the last block; the root's where there is none."""
    return chain(text, root)[-16:] if text else root


class Cluster:
    """A directory with nodes p0, p1 (boot "1"), d0, d1, checked after every call."""

    def __init__(self, **config: object) -> None:
        self.directory = Directory(DirectoryConfig(**config))  # type: ignore[arg-type]
        self.directory.add_root(ROOT)
        for node in ("p0", "p1", "d0", "d1"):
            self.directory.node_joined(node, "1")
        self.requests = 0
        self.now_s = 0.0
        self.told: dict[tuple[str, bytes], int] = {}

    def store(self, node: str, text: str, after: str = "", tier: int = 2, rid: str = "") -> bool:
        """Blocks `text` that follow `after`."""
        keys = chain(after + text)[len(after) * 16 :]
        taken = self.directory.stored(node, "1", tier, last(after), keys, rid)
        self.check()
        return taken

    def evict(self, node: str, text: str, after: str = "", tier: int = 2) -> int:
        gone = self.directory.evicted(node, "1", tier, chain(after + text)[len(after) * 16 :])
        self.check()
        return gone

    def ask(self, branch: str, text: str, *, tenant: str = "t", **signal: object) -> str:
        """A request arrives; returns its id."""
        self.requests += 1
        rid = f"r{self.requests}"
        said = Signal(branch, **signal) if branch else None  # type: ignore[arg-type]
        self.directory.arrive(rid, tenant, ROOT, chain(text), self.now_s, said)
        self.check()
        return rid

    def run(
        self, branch: str, text: str, p: str, d: str, output: str = "", **signal: object
    ) -> str:
        """A whole request: prefill at p, hand-over to d, output stored there."""
        rid = self.ask(branch, text, **signal)
        self.directory.place(rid, P, p)
        self.directory.place(rid, D, d)
        self.store(p, text, rid=rid)
        self.directory.moved(rid, P)
        self.store(d, text, tier=1, rid=rid)
        self.directory.moved(rid, D)
        if output:
            self.store(d, output, after=text, rid=rid)
        self.directory.closed(rid, self.now_s)
        self.check()
        return rid

    def lead(self, text: str) -> dict[str, int]:
        return self.directory.match(chain(text)).coverage

    def check(self) -> None:
        assert check(self.directory) == []
        for delta in self.directory.deltas():
            for at in range(0, len(delta.keys), 16):
                self.told[delta.node, delta.keys[at : at + 16]] = delta.block_class

    def refs(self, node: str, text: str) -> list[int]:
        """Live and suspect references of each block of the path at the node; -1: no copy."""
        counts = []
        for end in range(1, len(text) + 1):
            view = block(self.directory, last(text[:end]))
            copies = {c.node: c for c in view.copies} if view else {}
            copy = copies.get(node)
            counts.append(copy.live + copy.suspect if copy else -1)
            if copy:
                assert sum(copy.by_phase.values()) == counts[-1]
        return counts
