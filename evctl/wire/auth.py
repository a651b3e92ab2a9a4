"""Which keys may connect: the one authenticator (ZAP handler) of a zmq context.

libzmq asks `inproc://zeromq.zap.01` about every CURVE handshake. The answer comes from a
daemon thread of its own, so that it is prompt whether the owner of a socket is an asyncio
loop or a thread deep in a model's iteration. The thread ends with its context. Handshakes
fail closed: an unknown domain, a callback that raises or a dead thread means denied.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from itertools import count
from typing import Final

import zmq

from evctl.core.errors import ConflictError

AllowKey = Callable[[bytes], bool]
"""Says whether a 32-byte public key may connect. Called from the authenticator's thread."""
Denied = Callable[[bytes, str], None]
"""Told the public key and the address of a peer that may not. Same thread."""

ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
ZAP_VERSION: Final = b"1.0"

log = logging.getLogger(__name__)


class Authenticator:
    """Answers for all listeners of one context; each has a domain. See authenticator_of."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._rules: dict[bytes, tuple[AllowKey, Denied]] = {}
        self._numbers = count(1)
        self._key = context.underlying
        # A shadow's sockets are not closed by context.destroy() under the thread's feet.
        shadow: zmq.Context[zmq.Socket[bytes]] = zmq.Context.shadow(context.underlying)
        self._socket = shadow.socket(zmq.ROUTER, socket_class=zmq.Socket)
        self._socket.linger = 0
        try:
            self._socket.bind(ZAP_ENDPOINT)
        except zmq.ZMQError as error:
            self._socket.close()
            raise ConflictError(
                what="cannot authenticate peers",
                why=f"another ZAP handler serves this zmq context ({error.strerror})",
                next_step="give evctl's sockets a zmq context of their own",
                code="EV-3031",
            ) from error
        threading.Thread(target=self._serve, name="wire-auth", daemon=True).start()

    def register(self, allowed: AllowKey, denied: Denied) -> bytes:
        """A new domain, to be set as `zap_domain` of the socket that it guards."""
        domain = b"evctl/%d" % next(self._numbers)
        self._rules[domain] = (allowed, denied)
        return domain

    def unregister(self, domain: bytes) -> None:
        self._rules.pop(domain, None)

    def _serve(self) -> None:
        try:
            while True:
                self._answer(self._socket.recv_multipart())
        except zmq.ContextTerminated:
            pass
        finally:
            with _lock:
                _authenticators.pop(self._key, None)
            self._socket.close()

    def _answer(self, frames: list[bytes]) -> None:
        """One request: [peer, "", version, id, domain, address, identity, mechanism, key]."""
        if len(frames) < 4:
            return
        envelope, request_id = frames[:2], frames[3]
        reply, user_id = [b"400", b"denied"], b""
        if len(frames) == 9 and frames[2] == ZAP_VERSION and frames[7] == b"CURVE":
            key = frames[8]
            if self._decide(frames[4], frames[5].decode("ascii", "replace"), key):
                reply, user_id = [b"200", b"OK"], key.hex().encode("ascii")
        self._socket.send_multipart([*envelope, ZAP_VERSION, request_id, *reply, user_id, b""])

    def _decide(self, domain: bytes, address: str, key: bytes) -> bool:
        try:
            allowed, denied = self._rules[domain]
            if allowed(key):
                return True
            denied(key, address)
        except Exception:
            log.exception("a key could not be checked", extra={"event": "wire.auth_failed"})
        return False


_lock = threading.Lock()
_authenticators: dict[int, Authenticator] = {}
"""By address of the context: libzmq allows one ZAP handler in each."""


def authenticator_of(context: zmq.Context[zmq.Socket[bytes]]) -> Authenticator:
    """The authenticator of `context`, started at the first call.

    Raises ConflictError (EV-3031) when something else handles ZAP there.
    """
    with _lock:
        found = _authenticators.get(context.underlying)
        if found is None:
            found = _authenticators[context.underlying] = Authenticator(context)
        return found
