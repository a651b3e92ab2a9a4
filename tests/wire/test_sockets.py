"""Sockets over loopback with real keys: delivery, queues, reconnects, cost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest
import zmq

from evctl.core.errors import ConflictError, UnreachableError, UsageError
from evctl.wire import Dialer, Listener, SocketLimits, generate_keypair, to_z85
from evctl.wire.messages import CancelRequest, Ping, Pong, Stop

from .conftest import QUICK, Wire


def test_messages_pass_both_ways_with_the_proven_key(wire: Wire) -> None:
    dialer = wire.connect()
    assert dialer.send(Ping("n1", "b1", 1))
    [got] = wire.take(wire.listener)
    assert (got.message, got.public_key) == (Ping("n1", "b1", 1), wire.client.public)
    assert wire.listener.send(got.peer, Pong("n0", "b0", 1))
    [answer] = wire.take(dialer)
    assert answer == (b"", wire.server.public, Pong("n0", "b0", 1))
    assert wire.listener.counters["received"] == dialer.counters["received"] == 1


def test_each_peer_is_known_by_its_own_key(wire: Wire) -> None:
    pairs = [generate_keypair() for _ in range(5)]
    wire.ring.replace(p.public for p in pairs)
    dialers = [wire.connect(keypair=p) for p in pairs]
    for number, dialer in enumerate(dialers):
        assert dialer.send(Ping(f"n{number}", "b", number))
    received = wire.take(wire.listener, 5)
    assert {r.public_key: r.message for r in received} == {
        p.public: Ping(f"n{i}", "b", i) for i, p in enumerate(pairs)
    }
    assert len({r.peer for r in received}) == 5
    for r in received:
        assert isinstance(r.message, Ping)
        assert wire.listener.send(r.peer, Pong(r.message.node, "b", r.message.sequence))
    for number, dialer in enumerate(dialers):
        [answer] = wire.take(dialer)
        assert answer.message == Pong(f"n{number}", "b", number)


def test_receive_takes_no_more_than_asked(wire: Wire) -> None:
    dialer = wire.connect()
    for number in range(10):
        assert dialer.send(Ping("n", "b", number))
    numbers: list[int] = []
    end_s = time.monotonic() + 10
    while len(numbers) < 10 and time.monotonic() < end_s:
        batch = wire.listener.receive(3)
        assert len(batch) <= 3
        numbers += [r.message.sequence for r in batch if isinstance(r.message, Ping)]
    assert numbers == list(range(10))
    assert wire.listener.receive() == []


def test_an_unroutable_peer_is_noticed(wire: Wire) -> None:
    assert not wire.listener.send(b"\0none", Stop())
    dialer = wire.connect()
    dialer.send(Ping("n", "b", 1))
    [got] = wire.take(wire.listener)
    dialer.close()
    listener = wire.listener
    wire.until(lambda: not listener.send(got.peer, Stop()), listener)
    assert listener.counters["send_unroutable"] == 2
    wire.until(lambda: listener.counters["disconnections"] == 1, listener)


def test_a_flood_ends_in_false_and_bounded_memory(wire: Wire) -> None:
    small_queue = SocketLimits(queue_messages=10)
    dialer = wire.connect(limits=small_queue)
    dialer.send(Ping("n", "b", 1))
    [got] = wire.take(wire.listener)
    message = CancelRequest("x" * 2**16)
    before_bytes = psutil.Process().memory_info().rss
    sent = refused = 0
    while refused < 20_000:
        if wire.listener.send(got.peer, message):
            sent, refused = sent + 1, 0
        else:
            refused += 1
    grown_bytes = psutil.Process().memory_info().rss - before_bytes
    assert sent < 5_000
    assert grown_bytes < 400 * 2**20
    assert wire.listener.counters["send_full"] >= refused
    arrived = wire.take(dialer, sent)
    assert len(arrived) == sent
    assert wire.listener.send(got.peer, Stop())
    assert wire.take(dialer)[0].message == Stop()


def test_a_dialer_queues_nothing_while_unconnected(wire: Wire) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    dialer = wire.dial(endpoint=f"tcp://127.0.0.1:{port}")
    for _ in range(100):
        assert not dialer.send(Ping("n", "b", 0))
    assert dialer.counters["send_unconnected"] == 100
    listener = wire.listen(f"tcp://127.0.0.1:{port}")
    wire.until(lambda: dialer.connected, dialer, listener)
    assert dialer.send(Ping("n", "b", 1))
    assert [r.message for r in wire.take(listener)] == [Ping("n", "b", 1)]


def test_a_dialer_returns_to_a_restarted_listener(wire: Wire) -> None:
    dialer = wire.connect()
    for life in (1, 2, 3):
        assert dialer.connections >= life
        assert dialer.send(Ping("n", "b", life))
        [got] = wire.take(wire.listener)
        assert got.message == Ping("n", "b", life)
        port = wire.listener.port
        wire.listener.close()
        wire.until(lambda: not (dialer.connected or dialer.send(Stop())), dialer)
        wire.listener = wire.listen(f"tcp://127.0.0.1:{port}")
        wire.until(
            lambda: dialer.connected and wire.listener.counters["connections"] > 0,
            dialer,
            wire.listener,
        )
    assert not wire.listener.send(got.peer, Stop())


FROZEN_PEER = """
import sys, zmq
from evctl.wire import Dialer, keypair_of
from evctl.wire.messages import Ping
dialer = Dialer(
    zmq.Context(), keypair_of(bytes.fromhex(sys.argv[1])), bytes.fromhex(sys.argv[2]), sys.argv[3]
)
while not dialer.connected:
    dialer.pollables[1].poll(100)
    dialer.receive()
dialer.send(Ping("n", "b", 1))
sys.stdin.read()
"""


def test_a_frozen_peer_is_noticed(wire: Wire) -> None:
    limits = SocketLimits(heartbeat_s=0.2, dead_after_s=0.6)
    wire.listener = wire.listen(limits=limits)
    arguments = [wire.client.secret.hex(), wire.server.public.hex(), wire.listener.endpoint]
    process = subprocess.Popen(
        [sys.executable, "-c", FROZEN_PEER, *arguments], stdin=subprocess.PIPE
    )
    try:
        [got] = wire.take(wire.listener)
        assert wire.listener.send(got.peer, Stop())
        os.kill(process.pid, signal.SIGSTOP)
        wire.until(lambda: not wire.listener.send(got.peer, Stop()), wire.listener)
        assert wire.listener.counters["send_unroutable"] == 1
    finally:
        process.kill()
        process.communicate()


def test_an_idle_listener_costs_next_to_nothing(wire: Wire) -> None:
    dialers = [wire.connect() for _ in range(5)]
    wire.until(lambda: wire.listener.counters["connections"] == 5, wire.listener)
    poller = zmq.Poller()
    for channel in (wire.listener, *dialers):
        for pollable in channel.pollables:
            poller.register(pollable, zmq.POLLIN)
    cpu_s, end_s = time.process_time(), time.monotonic() + 1.0
    while (left_s := end_s - time.monotonic()) > 0:
        poller.poll(round(left_s * 1000) + 1)
        for channel in (wire.listener, *dialers):
            assert channel.receive() == []
    assert time.process_time() - cpu_s < 0.15


def test_a_context_ends_with_its_authenticator() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    count = threading.active_count()
    listeners = [Listener(context, generate_keypair(), lambda key: True) for _ in range(2)]
    assert threading.active_count() == count + 1
    for listener in listeners:
        listener.close()
        listener.close()
        assert listener.closed
    context.term()
    for thread in threading.enumerate():
        if thread.name == "wire-auth":
            thread.join(timeout=10)
    assert threading.active_count() <= count


def test_a_context_may_be_destroyed_under_open_listeners() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    for _ in range(2):
        Listener(context, generate_keypair(), lambda key: True)
    context.destroy(0)
    assert context.closed


def test_addresses_that_cannot_be_used_say_why(wire: Wire) -> None:
    with pytest.raises(UnreachableError) as taken:
        Listener(wire.here, wire.server, wire.ring, wire.listener.endpoint)
    assert (taken.value.code, "in use" in taken.value.why) == ("EV-3033", True)
    for endpoint in ("nonsense", "tcp://127.0.0.1", "udp://1.2.3.4:5", "tcp://127.0.0.1:x"):
        with pytest.raises(UsageError) as caught:
            Dialer(wire.there, wire.client, wire.server.public, endpoint)
        assert caught.value.code == "EV-3032"
    with pytest.raises(ValueError, match="32 bytes"):
        Dialer(wire.there, wire.client, b"short", wire.listener.endpoint)


def test_another_zap_handler_in_the_context_is_named() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    other = context.socket(zmq.REP)
    other.bind("inproc://zeromq.zap.01")
    with pytest.raises(ConflictError) as caught:
        Listener(context, generate_keypair(), lambda key: True)
    assert caught.value.code == "EV-3031"
    other.close()
    context.term()


def test_every_address_means_a_published_port(wire: Wire) -> None:
    listener = wire.listen("tcp://*:0")
    assert listener.endpoint == f"tcp://0.0.0.0:{listener.port}"
    assert listener.port > 0
    dialer = wire.connect(endpoint=f"tcp://127.0.0.1:{listener.port}")
    assert dialer.connected
    assert QUICK.queue_messages == listener.socket.sndhwm == listener.socket.rcvhwm
    assert to_z85(wire.server.secret) not in repr(listener.__dict__)
