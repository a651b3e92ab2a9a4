"""A node's KV memory, L1 and L2: one shared segment that every transfer backend can register.

The segment is a file in /dev/shm named after the node and its boot id. Its owner holds an
exclusive flock for as long as it lives, however it ends, so anybody can tell a live segment
from a dead one without trusting process ids. Nodes are started with spawn, never fork: a forked
child would keep the lock.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import re
import secrets
import weakref
from hashlib import blake2b
from pathlib import Path

from evctl.core.errors import ConflictError, RefusedError

SHM_DIRECTORY = Path("/dev/shm")
PREFIX = "evctl-"
HEADROOM_BYTES = 256 << 20
"""Left free of what MemAvailable promises: taking all of it wakes the OOM killer."""
BASE_RANGE = (16 << 40, 64 << 40)
"""Addresses that neither x86-64 nor aarch64 Linux gives to programs, libraries or heaps."""
BASE_ALIGNMENT = 2 << 20
MAP_ATTEMPTS = 8
PAGE_BYTES = 4096
LOWER = "lower l1_tokens or l2_tokens of the cluster's file, or free memory on this node"
MAP_FIXED_NOREPLACE = 0x100000
"""Fail rather than move or replace; the mmap module does not name it."""
MAP_FAILED = ctypes.c_void_p(-1).value
MAP_FLAGS = mmap.MAP_SHARED | mmap.MAP_POPULATE
"""Populated: the first copies would otherwise take one page fault for every 4 KiB."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

_PLAIN_ID = re.compile(r"[A-Za-z0-9_.]{1,64}")


def segment_name(node: str, boot_id: str) -> str:
    """File name of a node's L1 in one life. Ids may hold any character, so others are hashed."""
    boot = boot_id if _PLAIN_ID.fullmatch(boot_id) else "h." + _digest(boot_id)
    return f"{PREFIX}{_digest(node)}-{boot}-l1"


def available_bytes() -> int:
    """The kernel's MemAvailable: what can be taken without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("/proc/meminfo has no MemAvailable")


def refuse_beyond(what: str, size_bytes: int, free_bytes: int, source: str, code: str) -> None:
    """Raise RefusedError with the numbers if `size_bytes` exceed `free_bytes`."""
    if size_bytes > free_bytes:
        raise RefusedError(
            what=what,
            why=f"it needs {size_bytes} bytes ({size_bytes / 2**30:.2f} GiB), but {source} has "
            f"{max(free_bytes, 0)} ({max(free_bytes, 0) / 2**30:.2f} GiB) free",
            next_step=LOWER,
            code=code,
        )


def owner_alive(descriptor: int) -> bool:
    """Whether some other process holds the segment's lock; leaves it as it was."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def sweep_stale(directory: Path = SHM_DIRECTORY) -> list[str]:
    """Unlink segments whose owner is dead; returns their names. Never touches a live one."""
    return [path.name for path in sorted(directory.glob(PREFIX + "*")) if _unlink_if_dead(path)]


class KvMemory:
    """L1 and behind it, from `pool_offset` on, pool_bytes for L2: shared memory, mapped at an
    address fresh in each life.

    L1 is one region a rank, total_blocks parts of `part_bytes` each, on whole pages where there
    are several, so that a rank can map its own and no more. total_blocks are slots and block_bytes
    whole blocks, whatever the number of ranks; each rank keeps its share of every block, or,
    `replicated`, all of it.

    Raises RefusedError EV-4101 (/dev/shm) or EV-4102 (memory) where there is no room, and
    ConflictError EV-4103 if this life has a segment already.
    """

    def __init__(
        self,
        node: str,
        boot_id: str,
        total_blocks: int,
        block_bytes: int,
        directory: Path = SHM_DIRECTORY,
        pool_bytes: int = 0,
        ranks: int = 1,
        replicated: bool = False,
    ) -> None:
        if total_blocks < 1 or block_bytes < 1:
            raise ValueError(f"{total_blocks} blocks of {block_bytes} bytes are no memory")
        self.node = node
        self.boot_id = boot_id
        self.total_blocks = total_blocks
        self.block_bytes = block_bytes
        self.ranks = ranks
        self.replicated = replicated and ranks > 1
        self.part_bytes = part_bytes(block_bytes, ranks, self.replicated)
        self.region_bytes = region_bytes(total_blocks, self.part_bytes)
        """From the start of one rank's region to that of the next."""
        l1_bytes = (ranks - 1) * self.region_bytes + total_blocks * self.part_bytes
        self.pool_offset = ranks * self.region_bytes
        self.pool_bytes = pool_bytes
        self.size_bytes = self.pool_offset + pool_bytes if pool_bytes else l1_bytes
        self.name = segment_name(node, boot_id)
        self.path = directory / self.name
        self._refuse_without_room()
        self._descriptor = self._create()
        mapping = _map_at_fresh_address(self._descriptor, self.size_bytes)
        self.base = ctypes.addressof(mapping)
        self.view = memoryview(mapping).cast("B")

    def block(self, slot: int) -> memoryview:
        """The writable bytes of one slot, where one rank holds it whole. Raises IndexError outside
        the memory, ValueError where several ranks hold parts: pool.pages puts those together."""
        if self.ranks > 1:
            raise ValueError(f"a block lies in the regions of {self.ranks} ranks")
        if not 0 <= slot < self.total_blocks:
            raise IndexError(f"slot {slot} is not in 0..{self.total_blocks - 1}")
        start = slot * self.block_bytes
        return self.view[start : start + self.block_bytes]

    def region(self, rank: int) -> memoryview:
        """The writable bytes of one rank's part of every slot. Raises IndexError."""
        if not 0 <= rank < self.ranks:
            raise IndexError(f"rank {rank} is not in 0..{self.ranks - 1}")
        start = rank * self.region_bytes
        return self.view[start : start + self.total_blocks * self.part_bytes]

    def pool(self) -> memoryview:
        """The writable bytes of L2's part."""
        return self.view[self.pool_offset : self.pool_offset + self.pool_bytes]

    def close(self) -> None:
        """Unlink the segment, drop the lock and unmap. Idempotent.

        Transfers over this memory are closed before. While somebody still holds a view of it,
        the mapping stays: unmapping it would make that view a crash.
        """
        if self._descriptor < 0:
            return
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = -1
        self.view.release()

    def _refuse_without_room(self) -> None:
        kept = f", {self.ranks} whole copies of L1" if self.replicated else ""
        what = f"cannot create the KV memory of node {self.node!r}{kept}"
        stat = os.statvfs(self.path.parent)
        free_bytes = stat.f_bavail * stat.f_frsize
        refuse_beyond(what, self.size_bytes, free_bytes, str(self.path.parent), "EV-4101")
        usable_bytes = available_bytes() - HEADROOM_BYTES
        refuse_beyond(what, self.size_bytes, usable_bytes, "MemAvailable less 256 MiB", "EV-4102")

    def _create(self) -> int:
        """Make the file nameless, lock it, then name it: a sweep never sees it unlocked."""
        flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
        descriptor = os.open(self.path.parent, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Takes the pages now: a later write to a full /dev/shm would be a SIGBUS.
            os.posix_fallocate(descriptor, 0, self.size_bytes)
            # src_dir_fd is unused for an absolute path, but makes Python follow the link.
            os.link(f"/proc/self/fd/{descriptor}", self.path, src_dir_fd=descriptor)
        except FileExistsError as error:
            os.close(descriptor)
            raise ConflictError(
                what=f"cannot create the KV memory of node {self.node!r}",
                why=f"{self.path} exists: boot id {self.boot_id!r} is in use",
                next_step="start the node with a new boot id",
                code="EV-4103",
            ) from error
        except OSError as error:
            os.close(descriptor)
            raise RefusedError(
                what=f"cannot create the KV memory of node {self.node!r}",
                why=f"{self.size_bytes} bytes in {self.path.parent}: {error.strerror}",
                next_step=LOWER,
                code="EV-4101",
            ) from error
        return descriptor


def part_bytes(block_bytes: int, ranks: int, replicated: bool) -> int:
    """What one rank keeps of a block. Raises ValueError where blocks do not divide."""
    if ranks < 1 or (block_bytes % ranks and not replicated):
        raise ValueError(f"blocks of {block_bytes} bytes do not divide over {ranks} ranks")
    return block_bytes if replicated else block_bytes // ranks


def region_bytes(total_blocks: int, part_bytes: int) -> int:
    """Of one rank's L1, up to the next whole page: regions of L1, and L2 behind them, begin on
    one."""
    return -(-total_blocks * part_bytes // PAGE_BYTES) * PAGE_BYTES


def map_region(path: Path, offset: int, length_bytes: int) -> memoryview:
    """Map part of another process's segment, from a page boundary on. The file is opened anew, so
    the owner's lock stays the owner's alone."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        mapping = mmap.mmap(descriptor, length_bytes, flags=MAP_FLAGS, offset=offset)
    finally:
        os.close(descriptor)
    return memoryview(mapping)


def address_of(mapping: mmap.mmap) -> int:
    """Where a writable mapping lies in this process."""
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))


def _digest(value: str) -> str:
    return blake2b(value.encode(), digest_size=8).hexdigest()


def _unlink_if_dead(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False  # gone meanwhile, or another user's
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _map_at_fresh_address(descriptor: int, size_bytes: int) -> ctypes.Array[ctypes.c_char]:
    """Map the file at a random address; it is unmapped once neither array nor view is left.

    The kernel's own randomisation spans about 1 TiB, in which the pools of two lives overlap
    too often: a peer that still knows the old life must not find the new one where it was.
    """
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    low, high = BASE_RANGE
    for hint in [*(low + secrets.randbelow(high - low) for _ in range(MAP_ATTEMPTS)), 0]:
        address = hint // BASE_ALIGNMENT * BASE_ALIGNMENT
        flags = MAP_FLAGS | (MAP_FIXED_NOREPLACE if address else 0)
        found = _libc.mmap(address, size_bytes, protection, flags, descriptor, 0)
        if found == MAP_FAILED:
            continue
        array = (ctypes.c_char * size_bytes).from_address(found)
        weakref.finalize(array, _libc.munmap, found, size_bytes).atexit = False
        return array
    number = ctypes.get_errno()
    raise OSError(number, f"cannot map {size_bytes} bytes: {os.strerror(number)}")
