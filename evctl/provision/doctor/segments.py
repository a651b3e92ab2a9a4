"""Facts about KV memory in /dev/shm."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

from evctl.provision.doctor.facts import Segment
from evctl.provision.doctor.geometry import SEGMENT_PREFIX, segment_prefix

Inode = tuple[int, int]


def find_segments(folder: Path) -> tuple[Segment, ...]:
    """All of them, whoever's and of whichever cluster."""
    found = []
    for path in sorted(folder.glob(SEGMENT_PREFIX + "*")):
        try:
            status = path.lstat()
        except OSError:
            continue  # gone meanwhile
        if stat.S_ISREG(status.st_mode):
            mine = status.st_uid == os.getuid()
            mode = stat.S_IMODE(status.st_mode)
            found.append(Segment(path.name, status.st_size, mode, mine, _is_alive(path)))
    return tuple(found)


def _is_alive(path: Path) -> bool | None:
    """Whether its owner holds its lock. Ours is given back at once, so nobody is kept out."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def segment_of(pid: int, node: str, folder: Path) -> str:
    """The name of the segment that this process has of its own, "" if there is none: it holds
    those of its peers too."""
    held = _held_by(pid)
    for path in folder.glob(segment_prefix(node) + "*"):
        try:
            status = path.stat()
        except OSError:
            continue
        if (status.st_dev, status.st_ino) in held:
            return path.name
    return ""


def _held_by(pid: int) -> set[Inode]:
    """Files that a process has open. Their names say nothing: a segment is made nameless."""
    held = set()
    try:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                status = descriptor.stat()
            except OSError:
                continue
            held.add((status.st_dev, status.st_ino))
    except OSError:
        pass  # ended, or not ours to look into: then nothing is known to be held
    return held
