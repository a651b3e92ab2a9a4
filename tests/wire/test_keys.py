"""Keys on disk and on the list."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evctl.core.errors import ConfigError, ConflictError
from evctl.wire import (
    KeyPair,
    KeyRing,
    from_z85,
    generate_keypair,
    keypair_of,
    load_keypair,
    save_keypair,
    to_z85,
)


def test_a_saved_pair_loads_again(tmp_path: Path) -> None:
    pair, path = generate_keypair(), tmp_path / "node.key"
    old = os.umask(0)
    try:
        save_keypair(pair, path)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_keypair(path) == pair
    assert os.listdir(tmp_path) == ["node.key"]


def test_a_key_in_use_is_not_replaced(tmp_path: Path) -> None:
    pair, path = generate_keypair(), tmp_path / "node.key"
    save_keypair(pair, path)
    with pytest.raises(ConflictError) as caught:
        save_keypair(generate_keypair(), path)
    assert caught.value.code == "EV-3021"
    assert load_keypair(path) == pair
    assert os.listdir(tmp_path) == ["node.key"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660, 0o644])
def test_a_file_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "node.key"
    save_keypair(generate_keypair(), path)
    path.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        load_keypair(path)
    assert caught.value.code == "EV-3023"
    assert f"{mode:04o}" in caught.value.why


@pytest.mark.parametrize(
    "content", [b"", b"x" * 39, b"x" * 41, b"x" * 80, b" " * 40, b"\xff" * 40, b"#####" * 8]
)
def test_a_file_without_one_key_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "node.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        load_keypair(path)
    assert caught.value.code == "EV-3024"
    assert content.decode("latin-1") not in caught.value.why or not content


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.key", tmp_path):
        with pytest.raises(ConfigError) as caught:
            load_keypair(path)
        assert caught.value.code == "EV-3022"


@given(st.binary(min_size=32, max_size=32))
def test_z85_goes_both_ways(key: bytes) -> None:
    assert len(to_z85(key)) == 40
    assert from_z85(to_z85(key)) == key


@given(st.text(max_size=45))
def test_z85_refuses_or_reads_32_bytes(text: str) -> None:
    try:
        assert len(from_z85(text)) == 32
    except ValueError as error:
        assert "z85" in str(error)


def test_the_public_half_follows_and_the_secret_stays_out_of_reprs() -> None:
    pair = generate_keypair()
    assert keypair_of(pair.secret) == pair
    assert to_z85(pair.secret) not in repr(pair)
    assert repr(pair.secret) not in repr(pair)
    assert to_z85(pair.public) in repr(pair)
    for bad in (b"", bytes(31), bytes(33)):
        with pytest.raises(ValueError, match="32 bytes"):
            keypair_of(bad)
        with pytest.raises(ValueError, match="32 bytes"):
            KeyPair(pair.public, bad)
        with pytest.raises(ValueError, match="32 bytes"):
            to_z85(bad)


def test_the_ring_changes_whole_or_not_at_all() -> None:
    first, second = generate_keypair().public, generate_keypair().public
    ring = KeyRing([first])
    ring.add(second)
    assert first in ring
    assert ring(second)
    assert list(ring) == sorted([first, second])
    ring.discard(first)
    ring.discard(first)
    assert not ring(first)
    with pytest.raises(ValueError, match="32 bytes"):
        ring.replace([first, b"short"])
    assert list(ring) == [second]
    ring.replace([])
    assert len(ring) == 0
