"""The files in a cluster's state directory, as the control plane reads and writes them.

All are small, written whole (a draft renamed into place; splits.jsonl grows by a line a write) and
readable by their owner only.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import msgspec

from evctl.core.errors import ConfigError, ConflictError
from evctl.core.status import EventRecord
from evctl.wire.keys import from_z85

SOCKET_PATH_BYTES: Final = 107
"""The longest path that a unix socket can have on Linux."""
SECRET_BYTES: Final = 32
SPLIT_WRITES: Final = "splits.jsonl"
MAX_SPLIT_WRITES: Final = 200

T = TypeVar("T")


class ControlRecord(msgspec.Struct, frozen=True):
    """control.json: who serves the cluster, and where. start_time: of the process, so that a
    recycled pid is not taken for it. gateway: "" without one."""

    pid: int
    start_time: float
    boot_id: str
    epoch: int
    control_endpoint: str
    gateway: str
    admin: str


class NodeProcess(msgspec.Struct, frozen=True):
    """nodes/NODE.json, by whoever started the engine."""

    pid: int
    start_time: float
    config: str = ""


class HeldRoles(msgspec.Struct, frozen=True):
    """roles.json: what the next life of the control plane starts with."""

    generation: int
    mode: str
    held_by: str
    hold_reason: str
    roles: dict[str, str]


class ModelFiles(msgspec.Struct, frozen=True):
    """What the control plane reads of a prepared model's config.json."""

    name: str
    weights_hash: str
    context_tokens: int
    vocab_size: int
    eos_ids: tuple[int, ...]


class _EngineConfig(msgspec.Struct, frozen=True):
    model: str


class StateDirectory:
    """One cluster's state directory. Missing or damaged optional files read as None."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.journal = root / "journal"
        self.control_key = root / "control.key"
        self._lock: BinaryIO | None = None

    def lock(self) -> None:
        """Keep every other control plane out until `unlock` or the process ends.

        Raises ConflictError (EV-1311) when another one serves the cluster.
        """
        file = (self.root / "control.lock").open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise ConflictError(
                what=f"cannot serve the cluster in {self.root}",
                why="another control plane serves it already",
                next_step="use that one, or end it first: evctl down",
                code="EV-1311",
            ) from error
        self._lock = file

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def kv_secret(self) -> bytes:
        """Raises ConfigError (EV-1312) when it is not there or not 32 bytes."""
        path = self.root / "kv.secret"
        try:
            secret = path.read_bytes()
        except OSError as error:
            raise _bad_secret(path, str(error.strerror)) from error
        if len(secret) != SECRET_BYTES:
            raise _bad_secret(path, f"it has {len(secret)} bytes, not {SECRET_BYTES}")
        return secret

    def node_keys(self) -> dict[str, bytes]:
        """node -> public key, of keys/NODE.pub. Files that hold no key are left out."""
        keys = {}
        for path in sorted((self.root / "keys").glob("*.pub")):
            try:
                keys[path.stem] = from_z85(path.read_text(encoding="ascii").strip())
            except (OSError, ValueError):
                continue
        return keys

    def control_record(self) -> ControlRecord | None:
        return _read(self.root / "control.json", ControlRecord)

    def write_control_record(self, record: ControlRecord) -> None:
        write_whole(self.root / "control.json", msgspec.json.encode(record))

    def node_process(self, node: str) -> NodeProcess | None:
        return _read(self.root / "nodes" / f"{node}.json", NodeProcess)

    def held_roles(self) -> HeldRoles | None:
        return _read(self.root / "roles.json", HeldRoles)

    def write_held_roles(self, held: HeldRoles) -> None:
        write_whole(self.root / "roles.json", msgspec.json.encode(held))

    def split_writes(self) -> list[EventRecord]:
        """Writes to the split in earlier lives, oldest first, the last MAX_SPLIT_WRITES of them;
        drops older ones, and what a life left half written."""
        path = self.root / SPLIT_WRITES
        if not path.exists():
            return []
        whole = path.read_bytes().splitlines(keepends=True)
        found = []
        for line in whole[-MAX_SPLIT_WRITES:]:
            try:
                found.append(msgspec.json.decode(line, type=EventRecord))
            except (msgspec.DecodeError, ValueError):
                continue
        if len(found) != len(whole):
            write_whole(path, b"".join(msgspec.json.encode(one) + b"\n" for one in found))
        return found

    def append_split_write(self, record: EventRecord) -> None:
        path = self.root / SPLIT_WRITES
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")

    def model_directory(self, node: str, weights_hash: str) -> Path:
        """Where the model lies that this node's engine was told to load; in the cache of models
        when the node is not on this machine."""
        config = _read(self.root / "nodes" / f"{node}.config.json", _EngineConfig)
        if config is not None:
            return Path(config.model)
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        cache = base if base.is_absolute() else Path.home() / ".cache"
        return cache / "evctl" / "models" / weights_hash

    def admin_socket(self) -> Path:
        """Where the admin API listens: here, or where paths are short. Makes the folder."""
        path = self.root / "admin.sock"
        if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
            return path
        runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
        folder = runtime / "evctl" if runtime.is_absolute() else Path(f"/tmp/evctl-{os.getuid()}")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise ConfigError(
                what=f"cannot put the admin socket into {folder}",
                why="other users can reach that folder",
                next_step=f"remove it, or set XDG_RUNTIME_DIR: ls -ld {folder}",
                code="EV-1313",
            )
        tag = blake2b(os.fsencode(self.root), digest_size=6).hexdigest()
        return folder / f"{tag}.sock"


def model_files(directory: Path) -> ModelFiles | None:
    """None when there is no whole prepared model."""
    return _read(directory / "config.json", ModelFiles)


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file at once; mode 0600."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, ValueError):
        return None


def _bad_secret(path: Path, why: str) -> ConfigError:
    return ConfigError(
        what=f"cannot use the KV secret {path}",
        why=why,
        next_step="make the cluster's state with: evctl up",
        code="EV-1312",
    )
