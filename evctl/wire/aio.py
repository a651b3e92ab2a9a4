"""Waiting for a socket under asyncio."""

from __future__ import annotations

import asyncio

from evctl.wire.channel import Channel


class Readiness:
    """Tells an asyncio task when `receive()` of a Listener or Dialer has something to do.

    libzmq's descriptors are edge-triggered, and a send may swallow the edge of a message that
    arrives meanwhile; this watches for that. Make one per socket, on its loop; close it first.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._ready = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._descriptors = [s.fileno() for s in channel.pollables]
        channel.on_ready = self._ready.set
        for descriptor in self._descriptors:
            self._loop.add_reader(descriptor, self._wake)

    async def wait(self, timeout_s: float) -> bool:
        """True as soon as there is something to receive, False after `timeout_s`."""
        deadline_s = self._loop.time() + timeout_s
        while not self._channel.readable():
            self._ready.clear()
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self._ready.wait()
            except TimeoutError:
                return False
        return True

    def close(self) -> None:
        self._channel.on_ready = None
        for descriptor in self._descriptors:
            self._loop.remove_reader(descriptor)

    def _wake(self) -> None:
        if self._channel.readable():
            self._ready.set()
