"""The socket that engines dial, at the same place in each life of the control plane."""

from __future__ import annotations

import logging

import zmq

from evctl.core.errors import UnreachableError
from evctl.wire import CONTROL_LIMITS, KeyPair, KeyRing, Listener

log = logging.getLogger(__name__)


def open_listener(
    context: zmq.Context[zmq.Socket[bytes]],
    keypair: KeyPair,
    ring: KeyRing,
    host: str,
    preferred_endpoint: str,
) -> Listener:
    """Listen at the endpoint of an earlier life if it is free, for its engines dial that; else,
    or if preferred_endpoint is "", on any free port of `host`."""
    anywhere = f"tcp://{host}:0"
    try:
        return _listener(context, keypair, ring, preferred_endpoint or anywhere)
    except UnreachableError:
        if not preferred_endpoint:
            raise
    log.warning("%s is taken; engines that dial it are cut off", preferred_endpoint)
    return _listener(context, keypair, ring, anywhere)


def _listener(
    context: zmq.Context[zmq.Socket[bytes]], keypair: KeyPair, ring: KeyRing, endpoint: str
) -> Listener:
    return Listener(context, keypair, ring, endpoint, limits=CONTROL_LIMITS, name="control")
