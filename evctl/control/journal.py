"""What the reducer was fed and what it answered, on disk, so that it can be run again.

A journal is a folder of segments `EPOCH-SEGMENT.evj`; one life of the control plane writes one
epoch. A segment is a row of frames: length and CRC-32 of the body (4 bytes each, big-endian), and
the body in msgpack. The first frame of each is a JournalHeader, the last one a JournalEnd unless
the process or the disk ended before, the others are JournalEntry. It holds ids, keys and lengths,
never text or tokens.
"""

from __future__ import annotations

import logging
import os
import re
import struct
import threading
from pathlib import Path
from typing import BinaryIO, Final
from zlib import crc32

import msgspec

from evctl.core.effects import AnyEffect
from evctl.core.events import Event
from evctl.policy.state import PolicyConfig

FORMAT: Final = 5
FRAME: Final = struct.Struct(">II")
SUFFIX: Final = ".evj"
MAX_EPOCH: Final = 2**53
MAX_BACKLOG_BYTES: Final = 64 * 2**20
"""What may wait for a disk that does not keep up; beyond, the journal ends."""

log = logging.getLogger(__name__)


class JournalHeader(msgspec.Struct, frozen=True):
    """config: the state's before the first event. Times of the same moment, in seconds."""

    format: int
    epoch: int
    segment: int
    now_s: float
    wall_s: float
    config: PolicyConfig


class JournalEntry(msgspec.Struct, frozen=True, array_like=True):
    """One step. effects: as msgpack made them, to be compared byte for byte."""

    now_s: float
    event: Event
    effects: msgspec.Raw


class JournalEnd(msgspec.Struct, frozen=True, tag="end"):
    """next: the segment that follows; None where the journal was closed."""

    next: int | None


class JournalLimits(msgspec.Struct, frozen=True):
    """flush_s: the longest that a step waits for its fsync. keep_lives: older epochs are
    deleted when a new one starts."""

    segment_bytes: int = 64 * 2**20
    keep_lives: int = 8
    flush_s: float = 0.1


_NAME: Final = re.compile(r"(\d{6,16})-(\d{6,16})" + re.escape(SUFFIX), re.ASCII)
_encoder = msgspec.msgpack.Encoder()


def encode_effects(effects: tuple[AnyEffect, ...]) -> bytes:
    return _encoder.encode(effects)


def frame(body: bytes) -> bytes:
    return FRAME.pack(len(body), crc32(body)) + body


def segments(directory: Path) -> dict[int, list[Path]]:
    """epoch -> its segments in order. Other files are left out: see `strays`."""
    found: dict[int, list[tuple[int, Path]]] = {}
    for path in directory.glob(f"*{SUFFIX}"):
        if (numbers := numbers_of(path)) is not None:
            found.setdefault(numbers[0], []).append((numbers[1], path))
    return {epoch: [path for _, path in sorted(found[epoch])] for epoch in sorted(found)}


def strays(directory: Path) -> list[Path]:
    """Files that lie there like segments and are none."""
    return sorted(p for p in directory.glob(f"*{SUFFIX}") if numbers_of(p) is None)


def numbers_of(path: Path) -> tuple[int, int] | None:
    """Epoch and segment, as the name has them; None when it is no segment's name."""
    match = _NAME.fullmatch(path.name)
    if match is None or int(match[1]) > MAX_EPOCH:
        return None
    return int(match[1]), int(match[2])


class Journal:
    """Appends from the writer's loop; writes and syncs in a thread of its own.

    `problem` is "" until the disk refuses or falls behind; then nothing more is written, and
    whoever appends goes on.
    """

    def __init__(
        self, directory: Path, header: JournalHeader, limits: JournalLimits | None = None
    ) -> None:
        """Raises OSError when the first segment cannot be made."""
        self.problem = ""
        self.written_bytes = 0
        self._directory = directory
        self._header = header
        self._limits = limits or JournalLimits()
        self._backlog: list[bytes] = []
        self._backlog_bytes = 0
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._drop_old_lives()
        self._file, self._segment_bytes = self._open(0)
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def append(self, now_s: float, event: Event, effects: tuple[AnyEffect, ...]) -> None:
        """Take down one step. Does not block."""
        if self.problem:
            return
        raw = msgspec.Raw(encode_effects(effects))
        content = frame(_encoder.encode(JournalEntry(now_s, event, raw)))
        with self._lock:
            if self._backlog_bytes + len(content) > MAX_BACKLOG_BYTES:
                self.problem = "the disk does not keep up"
                return
            self._backlog.append(content)
            self._backlog_bytes += len(content)
        self._wake.set()

    def close(self) -> None:
        """Write and sync what is left. Idempotent."""
        self._closing.set()
        self._wake.set()
        self._thread.join()

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._wake.wait()
                # One fsync for all that comes meanwhile.
                self._closing.wait(self._limits.flush_s)
                self._wake.clear()
                self._flush()
            self._flush()
            if not self.problem:
                self._file.write(frame(_encoder.encode(JournalEnd(None))))
                self._sync()
        except OSError as error:
            self.problem = str(error.strerror or error)
            log.exception("the journal ends here", extra={"event": "journal.failed"})
        finally:
            self._file.close()

    def _flush(self) -> None:
        with self._lock:
            batch, self._backlog = self._backlog, []
            self._backlog_bytes = 0
        for content in batch:
            if self._segment_bytes + len(content) > self._limits.segment_bytes:
                self._next_segment()
            self._file.write(content)
            self._segment_bytes += len(content)
            self.written_bytes += len(content)
        if batch:
            self._sync()

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def _next_segment(self) -> None:
        self._file.write(frame(_encoder.encode(JournalEnd(self._header.segment + 1))))
        self._sync()
        self._file.close()
        self._file, self._segment_bytes = self._open(self._header.segment + 1)

    def _open(self, segment: int) -> tuple[BinaryIO, int]:
        self._header = msgspec.structs.replace(self._header, segment=segment)
        path = self._directory / f"{self._header.epoch:06d}-{segment:06d}{SUFFIX}"
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        first = frame(_encoder.encode(self._header))
        file.write(first)
        return file, len(first)

    def _drop_old_lives(self) -> None:
        lives = segments(self._directory)
        for epoch in sorted(lives)[: -self._limits.keep_lives or None]:
            for path in lives[epoch]:
                path.unlink(missing_ok=True)
