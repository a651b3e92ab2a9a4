"""Agents whose branches reach a control plane's directory without an engine or a socket."""

from __future__ import annotations

from hashlib import blake2b

from evctl.control.plane import ControlPlane
from evctl.core.branches import BranchSignal
from evctl.core.events import (
    EngineFact,
    FirstToken,
    FromNode,
    KvEvicted,
    KvStored,
    NodeJoined,
    PrefillStarted,
    RequestArrived,
    RequestDone,
    TransferDone,
)

ROOT = blake2b(b"root", digest_size=16).digest()
BLOCK_TOKENS = 16


def chain(text: str, root: bytes = ROOT) -> list[bytes]:
    """One block a letter, each key chained on the one before."""
    keys = []
    for letter in text:
        root = blake2b(root + letter.encode(), digest_size=16).digest()
        keys.append(root)
    return keys


class Agents:
    """Requests to order; every node stores what it computes, as engines do."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self._number = 0
        for name, node in plane.state.nodes.items():
            if not node.alive:
                plane.writer.feed(NodeJoined(name, "b", 4096, BLOCK_TOKENS, 64, 65_536))

    def fact(self, node: str, fact: EngineFact) -> None:
        self.plane.writer.feed(FromNode(node, "b", fact))

    def arrive(self, branch: str, text: str, *, tenant: str = "default", **signal: object) -> str:
        """A request of a branch; its prompt is a block for each letter. Returns its id."""
        self._number += 1
        request_id = f"r{self._number}"
        keys = b"".join(chain(text))
        said = BranchSignal(branch, **signal)  # type: ignore[arg-type]
        self.plane.writer.feed(
            RequestArrived(request_id, tenant, said, len(text) * BLOCK_TOKENS, 8, ROOT, keys)
        )
        return request_id

    def serve(self, branch: str, text: str, **signal: object) -> tuple[str, str]:
        """A request from arrival to end; the nodes that prefilled and decoded it."""
        request_id = self.arrive(branch, text, **signal)  # type: ignore[arg-type]
        record = self.plane.state.requests[request_id]
        prefill, decode = record.prefill_node, record.decode_node
        keys = b"".join(chain(text))
        self.fact(prefill, PrefillStarted(request_id, 0, record.prompt_tokens))
        self.fact(prefill, KvStored(request_id, 1, ROOT, keys))
        self.fact(prefill, KvStored(request_id, 2, ROOT, keys))
        self.fact(prefill, FirstToken(request_id, record.prompt_tokens))
        self.fact(decode, KvStored(request_id, 1, ROOT, keys))
        if decode != prefill:
            self.fact(prefill, TransferDone(request_id, decode, len(text), 1, 0))
        self.fact(decode, RequestDone(request_id, "length", record.prompt_tokens, 0, 8))
        return prefill, decode

    def evict(self, node: str, tier: int, text: str) -> None:
        """The last block of that text leaves a tier of the node."""
        self.fact(node, KvEvicted(tier, chain(text)[-1]))
