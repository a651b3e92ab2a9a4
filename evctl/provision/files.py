"""Files of a cluster: for their owner only, whole or absent."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from evctl.core.errors import ConflictError, EvctlError


def write_private(path: Path, content: bytes) -> None:
    """Replace a file by one with this content, mode 0600. Raises EvctlError (EV-1716)."""
    draft = _draft(path, content)
    try:
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise _not_written(path, error) from error


def create_private(path: Path, content: bytes) -> bool:
    """Write a file unless it exists; False when it does. A key in use is never replaced."""
    draft = _draft(path, content)
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def _draft(path: Path, content: bytes) -> Path:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise _not_written(path, error) from error
    return draft


def _not_written(path: Path, error: OSError) -> EvctlError:
    return EvctlError(
        what=f"cannot write {path}",
        why=error.strerror or repr(error),
        next_step=f"make room or give rights in {path.parent}, then evctl up again",
        code="EV-1716",
    )


def read_json(path: Path) -> dict[str, Any] | None:
    """An object from a file; None when there is none or it is damaged: both mean "unknown"."""
    try:
        value = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@contextmanager
def exclusive(path: Path, cluster: str, purpose: str) -> Iterator[None]:
    """Hold a lock file, which names its holder; the kernel drops it when we die.

    Raises ConflictError (EV-1712) at once when somebody else has it.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(descriptor, 200).decode("utf-8", "replace").strip()
            raise ConflictError(
                what=f"cluster {cluster} is being changed",
                why=f"{holder or 'another evctl'} holds it",
                next_step="wait until it is done, then try again",
                code="EV-1712",
            ) from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"evctl {purpose} (process {os.getpid()})".encode())
        yield
    finally:
        os.close(descriptor)
