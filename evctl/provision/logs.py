"""Reading a log file that a process appends to and that may be replaced by a new one."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Final

TAIL_CHUNK_BYTES: Final = 65_536
MAX_READ_BYTES: Final = 4_000_000
ROTATE_BYTES: Final = 64_000_000


class FileLog:
    """A LogReader over one file, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode: int | None = None
        self._offset_bytes = 0
        self._rest = b""

    def tail(self, count: int | None) -> list[str]:
        try:
            with self._path.open("rb") as file:
                self._inode = self._path.stat().st_ino
                lines = file.read() if count is None else _last_lines(file, count)
                self._offset_bytes = file.seek(0, 2)
        except FileNotFoundError:
            return []
        split = lines.splitlines()
        chosen = split if count is None else split[len(split) - min(count, len(split)) :]
        return [line.decode("utf-8", "replace") for line in chosen]

    def read_new(self) -> list[str]:
        try:
            status = self._path.stat()
            if status.st_ino != self._inode or status.st_size < self._offset_bytes:
                self._inode, self._offset_bytes, self._rest = status.st_ino, 0, b""
            if status.st_size == self._offset_bytes:
                return []
            with self._path.open("rb") as file:
                file.seek(self._offset_bytes)
                fresh = file.read(MAX_READ_BYTES)
        except FileNotFoundError:
            return []
        self._offset_bytes += len(fresh)
        *whole, self._rest = (self._rest + fresh).split(b"\n")
        return [line.decode("utf-8", "replace") for line in whole]


def _last_lines(file: IO[bytes], count: int) -> bytes:
    """Enough of a file's end to hold `count` lines."""
    end = file.seek(0, 2)
    start, found = end, b""
    while start > 0 and found.count(b"\n") <= count:
        step = min(TAIL_CHUNK_BYTES, start)
        start -= step
        file.seek(start)
        found = file.read(step) + found
    return found


def rotate(path: Path) -> None:
    """Put a large log aside, over the one before it."""
    if path.exists() and path.stat().st_size > ROTATE_BYTES:
        path.replace(path.with_suffix(path.suffix + ".1"))
