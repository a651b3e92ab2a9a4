"""Readiness never misses a message, however sends and receives interleave."""

from __future__ import annotations

import asyncio
import select
import time

from evctl.wire import Dialer, Listener
from evctl.wire.aio import Readiness
from evctl.wire.messages import Ping, Pong, Stop

from .conftest import Wire

ROUNDS = 1500


async def serve(listener: Listener, rounds: int) -> None:
    """Answers pings, and sends a burst that may hide the next one's arrival."""
    ready, served = Readiness(listener), 0
    while served < rounds:
        assert await ready.wait(10.0), f"nothing after {served}"
        for item in listener.receive(2):
            assert isinstance(item.message, Ping)
            served += 1
            for _ in range(served % 5):
                listener.send(item.peer, Stop())
            listener.send(item.peer, Pong("s", "b", item.message.sequence))
    ready.close()


async def ask(dialer: Dialer, rounds: int) -> None:
    ready, sequence, answered = Readiness(dialer), 0, 0
    while answered < rounds:
        if dialer.connected and sequence < rounds and sequence - answered < 3:
            sequence += dialer.send(Ping("c", "b", sequence))
            continue
        assert await ready.wait(10.0), f"nothing after {answered}"
        answered += sum(isinstance(r.message, Pong) for r in dialer.receive())
    ready.close()


def test_no_wakeup_is_lost(wire: Wire) -> None:
    async def both() -> None:
        await asyncio.gather(serve(wire.listener, ROUNDS), ask(wire.dial(), ROUNDS))

    asyncio.run(both())


def test_a_send_that_swallows_the_edge_wakes_the_waiter(wire: Wire) -> None:
    dialer = wire.connect()
    wire.until(lambda: wire.listener.counters["connections"] == 1, wire.listener)

    async def swallow() -> bool:
        ready = Readiness(wire.listener)
        waiter = asyncio.create_task(ready.wait(5.0))
        await asyncio.sleep(0)
        assert dialer.send(Stop())
        assert select.select([wire.listener.fileno()], [], [], 10.0)[0]
        while select.select([wire.listener.fileno()], [], [], 0)[0]:
            wire.listener.send(b"nobody", Stop())
        result = await waiter
        ready.close()
        return result

    assert asyncio.run(swallow())


def test_waiting_times_out_and_costs_nothing(wire: Wire) -> None:
    async def idle() -> bool:
        ready = Readiness(wire.listener)
        result = await ready.wait(0.5)
        ready.close()
        return result

    cpu_s, start_s = time.process_time(), time.monotonic()
    assert not asyncio.run(idle())
    assert time.monotonic() - start_s >= 0.5
    assert time.process_time() - cpu_s < 0.1


def test_a_message_left_behind_does_not_spin_the_loop(wire: Wire) -> None:
    dialer = wire.connect()
    dialer.send(Stop())

    async def busy_elsewhere() -> bool:
        ready = Readiness(wire.listener)
        assert await ready.wait(10.0)
        dialer.send(Stop())
        cpu_s = time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - cpu_s < 0.1
        result = await ready.wait(0.0)
        ready.close()
        return result

    assert asyncio.run(busy_elsewhere())
