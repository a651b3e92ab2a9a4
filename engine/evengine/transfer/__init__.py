"""KV bytes between any two nodes. Backends by name; none is imported before it is chosen."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from evctl.core.errors import ConfigError
from evengine.pool.memory import KvMemory
from evengine.ports import Clock, Transfer


def _open_shm(
    memory: KvMemory, node: str, boot_id: str, _host: str, _protocol: str, clock: Clock | None
) -> Transfer:
    from evengine.transfer.shm import ShmTransfer

    return ShmTransfer(memory, node, boot_id, clock)


def _open_mooncake(
    memory: KvMemory, node: str, boot_id: str, host: str, protocol: str, clock: Clock | None
) -> Transfer:
    from evengine.transfer.mooncake import MooncakeTransfer

    return MooncakeTransfer(memory, node, boot_id, host, protocol, clock)


BACKENDS: dict[str, Callable[[KvMemory, str, str, str, str, Clock | None], Transfer]] = {
    "shm": _open_shm,
    "mooncake": _open_mooncake,
}


def open_transfer(
    backend: str,
    memory: KvMemory,
    node: str,
    boot_id: str,
    *,
    host: str = "127.0.0.1",
    protocol: str = "tcp",
    clock: Clock | None = None,
) -> Transfer:
    """Start the named backend over this node's KV memory.

    host, protocol (tcp or rdma): mooncake only; the node's address on the pool's private
    network. Close the transfer before the memory. Raises ConfigError EV-4201 for an unknown
    name, and what the backend raises where it cannot start.
    """
    starter = BACKENDS.get(backend)
    if starter is None:
        near = get_close_matches(backend, BACKENDS, n=1, cutoff=0.0)
        raise ConfigError(
            what=f"unknown transfer backend {backend!r}",
            why=f"the backends are {', '.join(sorted(BACKENDS))}",
            next_step=f"did you mean transfer: {near[0]}?",
            code="EV-4201",
        )
    return starter(memory, node, boot_id, host, protocol, clock)
