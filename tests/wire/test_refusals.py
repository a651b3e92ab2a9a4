"""Peers that are wrong, old or hostile: refused with a reason, logged, counted, survived."""

from __future__ import annotations

import logging
import socket
import struct

import msgspec
import pytest
import zmq

from evctl.wire import (
    MAX_MESSAGE_BYTES,
    Dialer,
    KeyRing,
    Listener,
    SocketLimits,
    encode,
    encode_refused,
    generate_keypair,
    to_z85,
)
from evctl.wire.messages import Ping, Pong, Refused, Stop

from .conftest import QUICK, Wire


def records(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, object]]:
    return [vars(r) for r in caplog.records if vars(r).get("event") == event]


def check_alive(wire: Wire, listener: Listener | None = None) -> None:
    """The listener serves a fresh peer with a good key."""
    listener = listener or wire.listener
    pair = generate_keypair()
    wire.ring.add(pair.public)
    dialer = wire.connect(keypair=pair, endpoint=listener.endpoint)
    assert dialer.send(Ping("ok", "b", 7))
    got = [r for r in wire.take(listener) if r.public_key == pair.public]
    assert [r.message for r in got] == [Ping("ok", "b", 7)]
    assert listener.send(got[0].peer, Pong("ok", "b", 7))
    assert wire.take(dialer)[0].message == Pong("ok", "b", 7)


def refused(wire: Wire, dialer: Dialer, frame: bytes) -> Refused:
    """What the dialer hears after it sent `frame`."""
    dialer.socket.send(frame)
    heard: list[Refused] = []
    received = wire.until(lambda: dialer.readable() and not dialer.receive(0), wire.listener)
    assert received == []
    for item in wire.take(dialer):
        assert isinstance(item.message, Refused)
        heard.append(item.message)
    [answer] = heard
    return answer


def test_a_denied_key_is_logged_counted_and_may_come_back(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = generate_keypair()
    told: list[tuple[bytes, str, str]] = []
    wire.listener.on_refusal = lambda *refusal: told.append(refusal)
    dialer = wire.dial(keypair=stranger)
    counters = wire.listener.counters
    wire.until(
        lambda: bool(counters["denied_key"] and dialer.counters["denied_key"]),
        wire.listener,
        dialer,
    )
    assert not dialer.connected
    assert not dialer.send(Stop())
    record = next(r for r in records(caplog, "wire.denied_key") if "public_key" in r)
    assert record["public_key"] == to_z85(stranger.public)
    assert record["address"] == "127.0.0.1"
    assert told[0] == (stranger.public, "EV-3014", record["why"])
    assert counters["connections"] == counters["received"] == 0
    check_alive(wire)
    wire.ring.add(stranger.public)
    wire.until(lambda: dialer.connected, wire.listener, dialer)
    assert dialer.counters["redials"] >= 1


def test_a_peer_that_calls_before_it_is_announced_is_no_warning(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    early, stranger = generate_keypair(), generate_keypair()
    wire.listener.patience_s = 3600.0
    dialer = wire.dial(keypair=early)
    dialer.patience_s = 3600.0
    wire.until(
        lambda: bool(wire.listener.counters["denied_key"] and dialer.counters["denied_key"]),
        wire.listener,
        dialer,
    )
    found = records(caplog, "wire.denied_key")
    assert {record["levelname"] for record in found} == {"INFO"}
    assert all("was not announced yet" in str(record["why"]) for record in found)
    wire.ring.add(early.public)
    wire.until(lambda: dialer.connected, wire.listener, dialer)

    wire.listener.patience_s = 0.0
    caplog.clear()
    other = wire.dial(keypair=stranger)
    wire.until(lambda: bool(records(caplog, "wire.denied_key")), wire.listener, other)
    assert "WARNING" in {record["levelname"] for record in records(caplog, "wire.denied_key")}


def test_a_rule_that_raises_means_denied(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    def broken(key: bytes) -> bool:
        raise RuntimeError("no list")

    listener = Listener(wire.here, wire.server, broken, limits=QUICK)
    dialer = wire.dial(endpoint=listener.endpoint)
    wire.until(lambda: dialer.counters["denied_key"] > 0, dialer, listener)
    assert records(caplog, "wire.auth_failed")
    listener.close()
    check_alive(wire)


def test_listeners_of_one_context_keep_their_own_rings(wire: Wire) -> None:
    other_pair = generate_keypair()
    other = Listener(wire.here, wire.server, KeyRing([other_pair.public]), limits=QUICK)
    assert wire.connect(keypair=other_pair, endpoint=other.endpoint).connected
    denied = wire.dial(endpoint=other.endpoint)
    wire.until(lambda: other.counters["denied_key"] > 0, other, denied)
    assert wire.listener.counters["denied_key"] == 0
    other.close()
    check_alive(wire)


def test_a_key_taken_back_is_refused_on_its_open_connection(wire: Wire) -> None:
    dialer = wire.connect()
    wire.ring.discard(wire.client.public)
    assert refused(wire, dialer, encode(Ping("n", "b", 1))).code == "EV-3013"
    assert wire.listener.counters["refused_key_revoked"] == 1


def test_a_wrong_server_key_ends_the_handshake(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    dialer = wire.dial(server_key=generate_keypair().public)
    wire.until(
        lambda: bool(
            wire.listener.counters["handshake_protocol"] and dialer.counters["handshake_failed"]
        ),
        wire.listener,
        dialer,
    )
    assert not dialer.connected
    assert "cryptographic" in str(records(caplog, "wire.handshake_protocol")[0]["why"])
    assert "server key" in str(records(caplog, "wire.handshake_failed")[0]["why"])
    check_alive(wire)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"EV\x00\x01" + msgspec.msgpack.encode({"t": "Ping"}), "old_version"),
        (b"EV\x00\x03" + msgspec.msgpack.encode({"t": "Ping"}), "new_version"),
        (encode(Ping("n", "b", 1))[:-3], "truncated"),
        (encode(Ping("n", "b", 1)) + b"\0", "trailing_bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", "wrong_magic"),
        (b"", "too_short"),
        (
            b"EV\x00\x02" + msgspec.msgpack.encode({"t": "Warp", "request_id": "r1"}),
            "unknown_type",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_frame_is_answered_logged_and_counted(
    wire: Wire, caplog: pytest.LogCaptureFixture, frame: bytes, reason: str
) -> None:
    dialer = wire.connect()
    told: list[tuple[bytes, str, str]] = []
    wire.listener.on_refusal = lambda *refusal: told.append(refusal)
    answer = refused(wire, dialer, frame)
    assert told == [(wire.client.public, answer.code, answer.reason)]
    [record] = records(caplog, f"wire.refused_{reason}")
    assert answer.code == record["code"]
    assert answer.reason == record["why"]
    assert answer.request_id == ("r1" if reason == "unknown_type" else "")
    assert record["public_key"] == to_z85(wire.client.public)
    assert wire.listener.counters[f"refused_{reason}"] == 1
    check_alive(wire)


def test_an_old_peer_is_answered_in_its_own_version(wire: Wire) -> None:
    dialer = wire.connect()
    dialer.socket.send(struct.pack(">2sH", b"EV", 7) + b"\x80")
    wire.until(lambda: dialer.readable() and not dialer.receive(0), wire.listener)
    assert dialer.socket.recv()[:4] == struct.pack(">2sH", b"EV", 7)


def test_a_dialer_refuses_too_and_refusals_end_there(wire: Wire) -> None:
    dialer = wire.connect()
    dialer.send(Ping("n", "b", 1))
    [got] = wire.take(wire.listener)
    for bad in (b"EV\x00\x09\x80", b"junk!"):
        wire.listener.socket.send_multipart([got.peer, bad])
        wire.until(lambda: wire.listener.readable() and not wire.listener.receive(0), dialer)
        [answer] = wire.take(wire.listener)
        assert isinstance(answer.message, Refused)
    assert dialer.counters["refused_new_version"] == dialer.counters["refused_wrong_magic"] == 1
    wire.listener.socket.send_multipart([got.peer, encode_refused("EV-3999", "x", version=9)])
    assert wire.take(dialer)[0].message == Refused("EV-3999", "x")
    check_alive(wire)


def test_several_frames_are_no_message(wire: Wire) -> None:
    dialer = wire.connect()
    dialer.socket.send(encode(Stop()), zmq.SNDMORE)
    assert refused(wire, dialer, encode(Stop())).code == "EV-3012"
    assert wire.listener.counters["refused_bad_envelope"] == 1
    check_alive(wire)


def test_a_hundred_megabytes_are_refused_with_a_reason(wire: Wire) -> None:
    dialer = wire.connect()
    answer = refused(wire, dialer, bytes(100_000_000))
    assert answer.code == "EV-3010"
    assert "100000000 bytes" in answer.reason
    assert str(MAX_MESSAGE_BYTES) in answer.reason
    assert dialer.connections == 1
    assert dialer.send(Ping("n", "b", 2))
    assert wire.take(wire.listener)[0].message == Ping("n", "b", 2)
    check_alive(wire)


def test_two_hundred_megabytes_end_the_connection_only(wire: Wire) -> None:
    dialer = wire.connect()
    witness = wire.connect()
    dialer.socket.send(bytes(200_000_000))
    wire.until(lambda: dialer.connections == 2, dialer, wire.listener)
    assert wire.listener.counters["received"] == 0
    assert witness.send(Ping("w", "b", 1))
    assert wire.take(wire.listener)[0].message == Ping("w", "b", 1)
    assert witness.connections == 1
    check_alive(wire)


def test_peers_that_are_not_zmq_or_say_nothing_are_dropped(wire: Wire) -> None:
    listener = wire.listen(limits=SocketLimits(handshake_timeout_s=0.3))
    silent = socket.create_connection(("127.0.0.1", listener.port))
    web = socket.create_connection(("127.0.0.1", listener.port))
    web.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(4096))
    wire.until(lambda: listener.counters["disconnections"] == 2, listener)
    assert listener.counters["connections"] == 0
    check_alive(wire, listener)
    silent.close()
    web.close()


def test_a_dialer_survives_a_port_that_speaks_something_else(wire: Wire) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        dialer = wire.dial(endpoint=f"tcp://127.0.0.1:{port}")
        connection, _ = server.accept()
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(4096))
        wire.until(lambda: dialer.counters["disconnections"] > 0, dialer)
        connection.close()
    listener = wire.listen(f"tcp://127.0.0.1:{port}")
    wire.until(lambda: dialer.connected, dialer, listener)


def test_a_storm_of_bad_frames_is_logged_sparsely(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    dialer = wire.connect()
    for _ in range(500):
        dialer.socket.send(b"junk!")
    wire.until(lambda: wire.listener.counters["refused_wrong_magic"] == 500, wire.listener)
    logged = records(caplog, "wire.refused_wrong_magic")
    assert 1 <= len(logged) <= 10
    assert logged[0]["count"] == 1
