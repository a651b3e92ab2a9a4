"""CURVE key pairs and the ring of keys that may connect.

Keys are 32 raw bytes everywhere in evctl (PeerInfo.public_key too); z85 text of 40
characters appears only in files and on the border to libzmq. A key file holds the secret
half, one line of z85; the public half follows from it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import zmq
from zmq.utils import z85

from evctl.core.errors import ConfigError, ConflictError

KEY_BYTES: Final = 32
Z85_CHARS: Final = 40


class KeyPair(msgspec.Struct, frozen=True):
    """public, secret: 32 raw bytes each. The repr shows the public half only."""

    public: bytes
    secret: bytes

    def __post_init__(self) -> None:
        if len(self.public) != KEY_BYTES or len(self.secret) != KEY_BYTES:
            raise ValueError(f"both halves of a key pair have {KEY_BYTES} bytes")

    def __repr__(self) -> str:
        return f"KeyPair(public={to_z85(self.public)!r})"


def generate_keypair() -> KeyPair:
    """A fresh pair from the system's random source."""
    public, secret = zmq.curve_keypair()
    return KeyPair(z85.decode(public), z85.decode(secret))


def keypair_of(secret: bytes) -> KeyPair:
    """The pair with this secret half. Raises ValueError unless it has 32 bytes."""
    if len(secret) != KEY_BYTES:
        raise ValueError(f"a secret key has {KEY_BYTES} bytes, not {len(secret)}")
    return KeyPair(z85.decode(zmq.curve_public(z85.encode(secret))), secret)


def to_z85(key: bytes) -> str:
    """40 characters for 32 bytes. Raises ValueError on another length."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
    return z85.encode(key).decode("ascii")


def from_z85(text: str) -> bytes:
    """32 bytes of 40 z85 characters. Raises ValueError on anything else."""
    try:
        key = z85.decode(text) if len(text) == Z85_CHARS else b""
    except Exception as error:  # z85 lets KeyError, struct.error and others through
        raise ValueError("a key holds a character that is not z85") from error
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key in z85 has {Z85_CHARS} characters, not {len(text)}")
    return key


def save_keypair(pair: KeyPair, path: Path) -> None:
    """Write a new file with mode 0600, complete or not at all.

    Raises ConflictError (EV-3021) when `path` exists: a key in use is never replaced.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(to_z85(pair.secret) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError as error:
        raise ConflictError(
            what=f"cannot save a key as {path}",
            why="the file exists, and a key in use is never replaced",
            next_step=f"load it, or remove it to make every peer get a new one: rm {path}",
            code="EV-3021",
        ) from error
    finally:
        draft.unlink()


def load_keypair(path: Path) -> KeyPair:
    """The pair in a file that only its owner can read.

    Raises ConfigError: EV-3022 missing or unreadable, EV-3023 open to group or world or
    another user's, EV-3024 not one z85 key.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(Z85_CHARS + 3)
    except OSError as error:
        why, step = str(error.strerror), "make the cluster's keys with `evctl up`"
        raise _bad_key_file(path, why, step, "EV-3022") from error
    if status.st_mode & 0o077 or status.st_uid not in (os.geteuid(), 0):
        why = f"mode {status.st_mode & 0o777:04o}, user {status.st_uid}: others can reach it"
        raise _bad_key_file(path, why, f"make a new key, then chmod 600 {path}", "EV-3023")
    try:
        return keypair_of(from_z85(content.decode("ascii").strip()))
    except ValueError as error:
        why = "it does not hold one key, 40 characters of z85"
        raise _bad_key_file(path, why, "restore it or make a new one", "EV-3024") from error


def _bad_key_file(path: Path, why: str, next_step: str, code: str) -> ConfigError:
    return ConfigError(
        what=f"cannot use the key file {path}", why=why, next_step=next_step, code=code
    )


class KeyRing:
    """Public keys that may connect. Safe to change while sockets use it, from any thread."""

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        self._keys: frozenset[bytes] = frozenset()
        self.replace(keys)

    def add(self, public_key: bytes) -> None:
        """Raises ValueError unless the key has 32 bytes."""
        self.replace((*self._keys, public_key))

    def discard(self, public_key: bytes) -> None:
        """Refuse what arrives from this key from now on, on open connections too.

        What is sent to it still goes out: stop sending to peers that lost their key.
        """
        self._keys -= {public_key}

    def replace(self, keys: Iterable[bytes]) -> None:
        """Raises ValueError, and changes nothing, unless every key has 32 bytes."""
        fresh = frozenset(keys)
        for key in fresh:
            if len(key) != KEY_BYTES:
                raise ValueError(f"a public key has {KEY_BYTES} bytes, not {len(key)}")
        self._keys = fresh

    def __contains__(self, public_key: object) -> bool:
        return public_key in self._keys

    def __call__(self, public_key: bytes) -> bool:
        return public_key in self._keys

    def __iter__(self) -> Iterator[bytes]:
        return iter(sorted(self._keys))

    def __len__(self) -> int:
        return len(self._keys)
