"""A peer that sends any bytes it likes, and what an engine must be like after it."""

from __future__ import annotations

import zmq

from evctl.wire.codec import decode
from evctl.wire.keys import KeyPair, to_z85
from evctl.wire.messages import AnyMessage
from tests.engine.driver import Driver


class RawPeer:
    """A DEALER with CURVE that sends any bytes to an engine's peer channel."""

    def __init__(self, endpoint: str, server_key: bytes, keypair: KeyPair) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.curve_publickey = to_z85(keypair.public).encode()
        self._socket.curve_secretkey = to_z85(keypair.secret).encode()
        self._socket.curve_serverkey = to_z85(server_key).encode()
        self._socket.linger = 0
        self._socket.connect(endpoint)

    def ask(self, frame: bytes, timeout_s: float = 20.0) -> AnyMessage | None:
        """The answer to one frame, None if there is none in time."""
        self._socket.send(frame)
        if not self._socket.poll(timeout_s * 1000):
            return None
        return decode(self._socket.recv())

    def close(self) -> None:
        self._context.destroy(linger=0)


def assert_alive(driver: Driver) -> None:
    assert driver.run([[1, 2, 3, 4]], max_tokens=3)
    assert driver.quiet("a").problems == ()


def counter(driver: Driver, name: str) -> float:
    return driver.inspect("a").counters.get(name, 0)
