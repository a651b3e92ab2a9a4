"""What two tenants' agents could say: blocks by chained key, few letters, much shared."""

from __future__ import annotations

import random
from hashlib import blake2b

TENANTS = ("red", "blue")
DEEPEST = 14


class World:
    """Every block that was ever thought of, by its key."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.roots = {t: blake2b(t.encode(), digest_size=16).digest() for t in TENANTS}
        self.reset()

    def reset(self) -> None:
        """Nothing was thought of yet."""
        self.parents: dict[bytes, bytes] = {}
        self.paths: dict[bytes, list[bytes]] = {}
        self.under: dict[bytes, list[bytes]] = {}

    def child(self, parent: bytes, token: int) -> bytes:
        key = blake2b(parent + bytes([token]), digest_size=16).digest()
        if key not in self.parents:
            self.parents[key] = parent
            root = self.root_of(self.path_of(key))
            self.under.setdefault(root, []).append(key)
        return key

    def grow(self, root: bytes, path: list[bytes], blocks: int) -> list[bytes]:
        path = list(path)
        for _ in range(blocks):
            if len(path) < DEEPEST:
                token = self.random.choice((0, 0, 0, 0, 1, 2))
                path.append(self.child(path[-1] if path else root, token))
        return path

    def path_of(self, key: bytes) -> list[bytes]:
        path = self.paths.get(key)
        if path is None:
            parent = self.parents[key]
            above = self.path_of(parent) if parent in self.parents else []
            path = self.paths[key] = [*above, key]
        return path

    def root_of(self, path: list[bytes]) -> bytes:
        return self.parents[path[0]]

    def some_path(self, root: bytes) -> list[bytes]:
        """A prefix of something known, mostly, and something after it."""
        known = self.under.get(root)
        base = self.path_of(self.random.choice(known)) if known else []
        base = base[: self.random.randint(0, len(base))]
        return self.grow(root, base, self.random.randint(0, 4))
