"""Facts about the machine: kernel, cores, limits, memory, devices, addresses, firewall."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from evctl.provision.doctor.facts import Library, Limits, Memory, Platform, PortRange
from evctl.provision.doctor.firewall import guarded_ports, table_name
from evctl.provision.doctor.library import PACKAGE

SHM: Final = Path("/dev/shm")
RDMA: Final = Path("/dev/infiniband")
CONTROL_GROUP: Final = Path("/sys/fs/cgroup")
NFT_TIMEOUT_S: Final = 5.0


def read_platform() -> Platform:
    told = platform.uname()
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return Platform(told.system, told.release, told.machine, platform.python_version(), cores)


def read_limits() -> Limits:
    def soft(kind: int) -> int | None:
        value = resource.getrlimit(kind)[0]
        return None if value == resource.RLIM_INFINITY else value

    return Limits(soft(resource.RLIMIT_NOFILE), soft(resource.RLIMIT_MEMLOCK))


def read_memory(shm: Path = SHM, meminfo: Path = Path("/proc/meminfo")) -> Memory:
    total_bytes, free_bytes = _room_in(shm)
    told = dict(re.findall(r"^(\w+): +(\d+)", _text(meminfo), re.MULTILINE))
    available = told.get("MemAvailable")
    return Memory(
        shm_total_bytes=total_bytes,
        shm_free_bytes=free_bytes,
        available_bytes=None if available is None else int(available) << 10,
        group_free_bytes=_group_free_bytes(),
        huge_pages=int(told.get("HugePages_Total", 0)),
        huge_page_bytes=int(told.get("Hugepagesize", 0)) << 10,
    )


def _room_in(folder: Path) -> tuple[int, int]:
    try:
        stat = os.statvfs(folder)
    except OSError:
        return 0, 0
    return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize


def _group_free_bytes() -> int | None:
    """Of the control group that a container's processes see as theirs."""
    most, used = (_text(CONTROL_GROUP / name).strip() for name in ("memory.max", "memory.current"))
    return int(most) - int(used) if most.isdigit() and used.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def find_libraries() -> tuple[Library, ...]:
    """Packages of the transfer library, which is not imported for it."""
    found = {
        (dist.metadata["Name"], dist.version)
        for dist in metadata.distributions()
        if (dist.metadata["Name"] or "").lower().replace("_", "-").startswith(PACKAGE)
    }
    return tuple(Library(name, version) for name, version in sorted(found))


def missing_objects(names: Sequence[str]) -> tuple[str, ...]:
    """Shared objects that the loader does not find."""
    missing = []
    for name in names:
        try:
            ctypes.CDLL(name)
        except OSError:
            missing.append(name)
    return tuple(missing)


def rdma_devices(folder: Path = RDMA) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in folder.glob("uverbs*")))


def own_addresses() -> tuple[str, ...]:
    """Addresses of the interfaces that are up, loopback aside."""
    import psutil

    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found = {
        address.address.partition("%")[0]
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if name in up and address.family in (socket.AF_INET, socket.AF_INET6)
    }
    return tuple(sorted(a for a in found if a != "::1" and not a.startswith("127.")))


def read_guarded(cluster: str) -> tuple[PortRange, ...] | None:
    """Ports that our own firewall table drops. None: there is no nft here, or it says no."""
    program = shutil.which("nft")
    if program is None:
        return None
    try:
        listed = subprocess.run(
            [program, "list", "table", "inet", table_name(cluster)],
            capture_output=True,
            text=True,
            timeout=NFT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if listed.returncode == 0:
        return guarded_ports(listed.stdout)
    return () if "No such file" in listed.stderr else None
