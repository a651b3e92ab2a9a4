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
from typing import Annotated, BinaryIO, Final, TypeVar

import msgspec

from evctl.core.errors import ConfigError, ConflictError, EvctlError
from evctl.core.split import Role
from evctl.core.status import EventRecord
from evctl.wire.keys import from_z85

SOCKET_PATH_BYTES: Final = 107
"""The longest path that a unix socket can have on Linux."""
SECRET_BYTES: Final = 32
SPLIT_WRITES: Final = "splits.jsonl"
MAX_SPLIT_WRITES: Final = 400

MAX_COUNT: Final = 2**53
"""Above this, an epoch or a generation is damage."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
Mode = Annotated[str, msgspec.Meta(pattern="^(auto|advise|hold)$")]
Pid = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]

T = TypeVar("T")


class ControlRecord(msgspec.Struct, frozen=True):
    """control.json: who serves the cluster, and where. start_time: of the process, so that a
    recycled pid is not taken for it. gateway: "" without one."""

    pid: Pid
    start_time: float
    boot_id: str
    epoch: Count
    control_endpoint: str
    gateway: str
    admin: str


class NodeProcess(msgspec.Struct, frozen=True):
    """nodes/NODE.json, by whoever started the engine."""

    pid: Pid
    start_time: float
    config: str = ""


class HeldRoles(msgspec.Struct, frozen=True):
    """roles.json: what the next life of the control plane starts with. until_s: of a hold that
    ends by itself, seconds since the epoch; mode_after: the mode then."""

    generation: Count
    mode: Mode
    held_by: str
    hold_reason: str
    roles: dict[str, Role]
    until_s: float | None = None
    mode_after: Mode = "advise"


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
    """One cluster's state directory. Missing or damaged optional files read as None; `damaged`
    tells of the latter: name -> why."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.damaged: dict[str, str] = {}
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
        """node -> public key, of keys/NODE.pub. Files that hold no key are left out.

        Raises OSError when they cannot be read now: that takes no key back.
        """
        keys = {}
        for path in sorted((self.root / "keys").glob("*.pub")):
            try:
                keys[path.stem] = from_z85(path.read_text(encoding="ascii").strip())
            except (FileNotFoundError, IsADirectoryError, PermissionError, ValueError):
                continue
        return keys

    def control_record(self) -> ControlRecord | None:
        return self._read(self.root / "control.json", ControlRecord)

    def write_control_record(self, record: ControlRecord) -> None:
        self._write("control.json", msgspec.json.encode(record))

    def node_process(self, node: str) -> NodeProcess | None:
        return self._read(self.root / "nodes" / f"{node}.json", NodeProcess)

    def held_roles(self) -> HeldRoles | None:
        return self._read(self.root / "roles.json", HeldRoles)

    def write_held_roles(self, held: HeldRoles) -> None:
        """Raises EvctlError (EV-1314) when it cannot be written; the old ones are left then."""
        self._write("roles.json", msgspec.json.encode(held))

    def split_writes(self) -> list[EventRecord]:
        """Writes to the split in earlier lives, and changes of it that ended, oldest first, the
        last MAX_SPLIT_WRITES of them; drops older ones, and what a life left half written."""
        path = self.root / SPLIT_WRITES
        try:
            whole = path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        except OSError as error:
            self.damaged[path.name] = str(error.strerror)
            return []
        found = []
        for line in whole[-MAX_SPLIT_WRITES:]:
            try:
                found.append(msgspec.json.decode(line, type=EventRecord))
            except (msgspec.DecodeError, ValueError):
                continue
        if len(found) != len(whole):
            try:
                write_whole(path, b"".join(msgspec.json.encode(one) + b"\n" for one in found))
            except OSError as error:
                self.damaged[path.name] = str(error.strerror)
        return found

    def append_split_write(self, record: EventRecord) -> None:
        path = self.root / SPLIT_WRITES
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")

    def model_directory(self, node: str, weights_hash: str) -> Path:
        """Where the model lies that this node's engine was told to load; in the cache of models
        when the node is not on this machine."""
        config = self._read(self.root / "nodes" / f"{node}.config.json", _EngineConfig)
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

    def _read(self, path: Path, kind: type[T]) -> T | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            self.damaged[path.name] = str(getattr(error, "strerror", None) or error)
            return None

    def _write(self, name: str, content: bytes) -> None:
        try:
            write_whole(self.root / name, content)
        except OSError as error:
            raise EvctlError(
                what=f"cannot write {self.root / name}",
                why=str(error.strerror or error),
                next_step=f"make room, or let us write there, and try again: df -h {self.root}",
                code="EV-1314",
            ) from error


def model_files(directory: Path) -> ModelFiles | None:
    """None when there is no whole prepared model."""
    try:
        return msgspec.json.decode((directory / "config.json").read_bytes(), type=ModelFiles)
    except (OSError, ValueError):
        return None


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


def unusable_system(error: OSError) -> EvctlError:
    """EV-1315: the system refused something without which there is no control plane."""
    return EvctlError(
        what="the control plane cannot go on",
        why=str(error),
        next_step="look at what is named: a full disk, another user's file, too many open files",
        code="EV-1315",
    )


def _bad_secret(path: Path, why: str) -> ConfigError:
    return ConfigError(
        what=f"cannot use the KV secret {path}",
        why=why,
        next_step="put the right file back from a copy, or give up all cached KV, which nobody "
        f"can find without it: evctl down, rm {path}, evctl up",
        code="EV-1312",
    )
