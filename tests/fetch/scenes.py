"""Small scenes of fetches: two nodes, one block after another, everything to its end."""

from __future__ import annotations

from evctl.wire.messages import LocateKv
from evengine.fetch.limits import FetchLimits
from tests.fetch.nodes import Node
from tests.fetch.world import Asked, World

BATCH = 3
ONE_BATCH = FetchLimits(batch_blocks=BATCH, bytes_in_flight=1)
"""The bound is reached with the first batch: the next one goes when that has come."""


def path_of(first: int, length: int) -> list[int]:
    return [first, *range(length - 1)]


def two_nodes(world: World, limits: FetchLimits = ONE_BATCH, l2_blocks: int = 120) -> list[Node]:
    return [
        world.start(name, limits=limits, l1_blocks=60, l2_blocks=l2_blocks) for name in ("a", "b")
    ]


def asked_for(world: World) -> list[bytes]:
    """Keys of the letters that have not arrived, in their order."""
    packed = b"".join(x.message.keys for x in world.wire if isinstance(x.message, LocateKv))
    return [packed[at : at + 16] for at in range(0, len(packed), 16)]


def run_all(world: World, requests: list[Asked]) -> None:
    """To the end; nothing may be left."""
    waiting = list(requests)
    for _ in range(300):
        for asked in list(waiting):
            if not asked.admitted:
                world.admit(asked)
            if asked.runnable:
                world.finish(asked)
                waiting.remove(asked)
        if world.calm() and not waiting:
            break
    assert waiting == []
    world.clock.time_s += 60
    world.turn()
    for node in world.nodes.values():
        assert node.problems() == []
        assert {what: left for what, left in node.remains().items() if left} == {}
