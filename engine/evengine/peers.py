"""The other engines: one Dialer to each, alive while it answers pings."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import zmq

from evctl.core.errors import EvctlError
from evctl.wire import Dialer, Received
from evctl.wire.keys import KeyPair, KeyRing
from evctl.wire.messages import AnyMessage, PeerInfo, Ping, Pong
from evengine.ports import Clock, Transfer

PING_EVERY_S = 1.0
ALIVE_S = 3.5
"""A peer that answered no ping for so long gets no new work until it answers again."""

ANNOUNCED_WITHIN_S = 10.0
"""A newcomer and its peers are told of each other one after the other; whoever hears first calls,
and is denied until the other has heard too."""

_log = logging.getLogger("evengine.peers")


class Peer:
    """One life of a node, as the control plane announced it."""

    def __init__(self, info: PeerInfo, dialer: Dialer) -> None:
        self.info = info
        self.dialer = dialer
        self.answered_s: float | None = None
        self.pinged_s = float("-inf")
        self.sequence = 0
        self.first_good_sequence = 1
        """Answers to earlier pings say nothing about the peer as it is now."""


class PeerSet:
    """Keeps the set of peers equal to what the control plane last said.

    Memory of a peer is touched only after it answered a ping with its boot id (transfer
    rule 7), so a stale address can never be written to.
    """

    def __init__(
        self,
        *,
        me: PeerInfo,
        context: zmq.Context[zmq.Socket[bytes]],
        keypair: KeyPair,
        allowed: KeyRing,
        transfer: Transfer,
        clock: Clock,
    ) -> None:
        self._me = me
        self._context = context
        self._keypair = keypair
        self._allowed = allowed
        self._transfer = transfer
        self._clock = clock
        self._peers: dict[str, Peer] = {}
        self._node_by_key: dict[bytes, str] = {}

    def update(self, infos: tuple[PeerInfo, ...]) -> list[PeerInfo]:
        """Adopt a new list; returns the lives that ended. Sockets may have changed."""
        wanted = {info.node: info for info in infos if info.node != self._me.node}
        ended = [peer for node, peer in self._peers.items() if wanted.get(node) != peer.info]
        for peer in ended:
            self._drop(peer)
        for node, info in wanted.items():
            if node not in self._peers:
                self._try_add(info)
        return [peer.info for peer in ended]

    def dialers(self) -> list[Dialer]:
        return [peer.dialer for peer in self._peers.values()]

    def node_of(self, public_key: bytes) -> str | None:
        """Which node a connection's proven key belongs to."""
        return self._node_by_key.get(public_key)

    def alive(self, node: str) -> PeerInfo | None:
        peer = self._peers.get(node)
        if peer is None or peer.answered_s is None:
            return None
        return peer.info if self._clock.now_s() - peer.answered_s < ALIVE_S else None

    def announced(self, node: str) -> PeerInfo | None:
        peer = self._peers.get(node)
        return peer.info if peer else None

    def send(self, node: str, message: AnyMessage) -> bool:
        peer = self._peers.get(node)
        return peer is not None and peer.dialer.send(message)

    def recheck(self, node: str) -> None:
        """Treat a peer as unknown until it answers a new ping."""
        peer = self._peers.get(node)
        if peer is not None:
            peer.answered_s = None
            peer.first_good_sequence = peer.sequence + 1
            peer.pinged_s = float("-inf")

    def receive(self, max_messages: int) -> Iterator[tuple[str, Received]]:
        """What the peers answered; pongs are dealt with here."""
        for node, peer in list(self._peers.items()):
            for received in peer.dialer.receive(max_messages):
                if isinstance(received.message, Pong):
                    self._on_pong(peer, received.message)
                else:
                    yield node, received

    def tick(self, now_s: float) -> None:
        for peer in self._peers.values():
            if now_s - peer.pinged_s < PING_EVERY_S:
                continue
            # One that could not be sent is none: a peer is pinged as soon as it is connected.
            ping = Ping(self._me.node, self._me.boot_id, peer.sequence + 1)
            if peer.dialer.send(ping):
                peer.pinged_s, peer.sequence = now_s, ping.sequence

    def close(self) -> None:
        for peer in self._peers.values():
            peer.dialer.close()

    def _try_add(self, info: PeerInfo) -> None:
        """One bad entry must not cost this engine the other peers, or its life."""
        theirs, ours = info.transfer, self._me.transfer
        try:
            if theirs.block_bytes != ours.block_bytes:
                raise ValueError(
                    f"its blocks have {theirs.block_bytes} bytes, ours {ours.block_bytes}"
                )
            if theirs.ranks != ours.ranks:
                # a push copies rank to rank; what one rank has here, two may share there
                raise ValueError(f"its KV lies in {theirs.ranks} ranks, ours in {ours.ranks}")
            self._add(info)
        except (EvctlError, ValueError) as error:
            _log.error("peer not usable", extra={"peer": info.node, "why": str(error)})
            self._allowed.discard(info.public_key)
            self._node_by_key.pop(info.public_key, None)

    def _add(self, info: PeerInfo) -> None:
        self._allowed.add(info.public_key)
        self._node_by_key[info.public_key] = info.node
        dialer = Dialer(
            self._context,
            self._keypair,
            info.public_key,
            info.endpoint,
            name=f"{self._me.node}->{info.node}",
        )
        dialer.patience_s = ANNOUNCED_WITHIN_S
        self._peers[info.node] = Peer(info, dialer)

    def _drop(self, peer: Peer) -> None:
        # It may run: a control plane that was started anew names only those that are back with it.
        told = {"peer": peer.info.node, "boot_id": peer.info.boot_id}
        _log.info("peer not on the control plane's list now", extra=told)
        del self._peers[peer.info.node]
        self._node_by_key.pop(peer.info.public_key, None)
        self._allowed.discard(peer.info.public_key)
        peer.dialer.close()

    def _on_pong(self, peer: Peer, pong: Pong) -> None:
        if pong.boot_id != peer.info.boot_id:
            _log.warning("peer answers with another boot id", extra={"peer": peer.info.node})
            return
        if pong.sequence < peer.first_good_sequence:
            return
        if peer.answered_s is None:
            self._transfer.connect(peer.info.transfer)
        peer.answered_s = self._clock.now_s()
