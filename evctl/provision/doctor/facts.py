"""What was found on a machine. Values only: what they mean is said in checks/."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from evctl.core.kv import KvLayout

if TYPE_CHECKING:  # the schema costs 60 ms
    from evctl.config.cluster import ClusterConfig

PortRange = tuple[int, int]
"""First and last port."""

WILDCARDS: Final = frozenset({"0.0.0.0", "::"})
"""Addresses that mean every interface."""


class Platform(msgspec.Struct, frozen=True):
    """system, release, architecture: as uname says them. cores: that this process may use."""

    system: str
    release: str
    architecture: str
    python: str
    cores: int


class Limits(msgspec.Struct, frozen=True):
    """Of processes that this user starts. None: no limit. locked_bytes: memory that may be kept
    from being swapped, as RDMA needs it."""

    open_files: int | None
    locked_bytes: int | None


class Memory(msgspec.Struct, frozen=True):
    """available_bytes: the kernel's MemAvailable, None where it says none. group_free_bytes: what
    the control group leaves, None without such a limit. huge_pages: reserved ones."""

    shm_total_bytes: int
    shm_free_bytes: int
    available_bytes: int | None
    group_free_bytes: int | None
    huge_pages: int
    huge_page_bytes: int


class Segment(msgspec.Struct, frozen=True):
    """A file of ours in /dev/shm. alive: whether its owner holds its lock, None if it cannot be
    opened. mine: it belongs to this user."""

    name: str
    size_bytes: int
    mode: int
    mine: bool
    alive: bool | None


class ListeningSocket(msgspec.Struct, frozen=True, order=True):
    address: str
    port: int

    @property
    def on_all_interfaces(self) -> bool:
        return self.address in WILDCARDS

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"


class LibraryPorts(msgspec.Struct, frozen=True):
    """Where the transfer library looks for ports, by a process's environment. ignored: another
    range is set there, which the library does not take."""

    first: int
    last: int
    ignored: bool = False

    @property
    def range(self) -> PortRange:
        return self.first, self.last


class Process(msgspec.Struct, frozen=True):
    """A live process of the cluster. listens: None if that could not be found out. segment: its
    own KV memory, "" if it has none yet. library_ports: None for the control plane, and where its
    environment cannot be read."""

    unit: str
    pid: int
    listens: tuple[ListeningSocket, ...] | None
    segment: str = ""
    transfer: str = ""
    listen_host: str = "127.0.0.1"
    advertise_host: str = "127.0.0.1"
    library_ports: LibraryPorts | None = None


class Control(msgspec.Struct, frozen=True):
    """What a running control plane says about itself. Ports are 0 where it says nothing.
    admin_mode: of the socket file, None if there is none; admin_private: no other user gets at
    the folder around it; admin_problem: why nobody answers there, "" if somebody does."""

    process: Process
    channel_port: int
    gateway_port: int
    admin: str
    admin_mode: int | None
    admin_private: bool
    admin_problem: str


class Library(msgspec.Struct, frozen=True):
    """A package of the transfer library that is installed."""

    name: str
    version: str


class SecretFile(msgspec.Struct, frozen=True):
    path: str
    mode: int
    mine: bool


class Facts(msgspec.Struct, frozen=True):
    """layout: of the model's KV, None while the model is not prepared here. libraries: the
    transfer library's packages; missing_libraries: shared objects that they need and that cannot
    be loaded. library_ports: by the environment of whoever asks. rdma_devices: of
    /dev/infiniband. addresses: of this machine, loopback aside. guarded: ports that our own
    firewall table shuts, None if that cannot be read. port_problem: why nobody could listen on
    the gateway's port. secrets: files that hold keys."""

    platform: Platform
    limits: Limits
    memory: Memory
    layout: KvLayout | None
    segments: tuple[Segment, ...]
    engines: tuple[Process, ...]
    control: Control | None
    libraries: tuple[Library, ...]
    missing_libraries: tuple[str, ...]
    library_ports: LibraryPorts
    rdma_devices: tuple[str, ...]
    addresses: tuple[str, ...]
    guarded: tuple[PortRange, ...] | None
    port_problem: str
    secrets: tuple[SecretFile, ...]


class Subject(msgspec.Struct, frozen=True):
    """What is judged. source: the cluster's file. nodes: those that were asked about."""

    config: ClusterConfig
    source: str
    nodes: tuple[str, ...]
    facts: Facts
