"""What a node's pool has around it: time, somebody to tell, one peer, branches that grow."""

from __future__ import annotations

from hashlib import blake2b

from evctl.core.events import KvEvicted, KvStored
from evctl.wire.messages import PeerInfo, TransferAddress

ROOT = b"r" * 16
PEER = PeerInfo("peer", "peer-boot", "", b"", TransferAddress("shm", "peer", "", "", 0, 0, 1))


class FakeClock:
    def __init__(self) -> None:
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s

    def thread_cpu_s(self) -> float:
        return 0.0


class Directory:
    """An Outlet that keeps what the control plane would know of L2, and knows one peer."""

    def __init__(self) -> None:
        self.in_l2: set[bytes] = set()
        self.facts = 0

    def fact(self, fact: object) -> None:
        self.facts += 1
        if isinstance(fact, KvStored | KvEvicted) and fact.tier == 2:
            keys = {fact.keys[at : at + 16] for at in range(0, len(fact.keys), 16)}
            if isinstance(fact, KvStored):
                self.in_l2 |= keys
            else:
                self.in_l2 -= keys

    def tokens(self, message: object) -> None: ...

    def to_peer(self, node: str, message: object) -> bool:
        return False

    def peer(self, node: str) -> PeerInfo | None:
        return None

    def announced(self, node: str) -> PeerInfo | None:
        return PEER if node == PEER.node else None

    def recheck_peer(self, node: str) -> None: ...


class Branch:
    """A growing context; a rewrite keeps a part of it."""

    def __init__(self, number: int) -> None:
        self.name = f"branch-{number}"
        self.steps = [number % 8] * 3  # eight stems, shared

    def keys(self) -> list[bytes]:
        found, parent = [], ROOT
        for step in self.steps:
            parent = blake2b(step.to_bytes(8, "little"), digest_size=16, key=parent).digest()
            found.append(parent)
        return found
