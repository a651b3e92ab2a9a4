"""Facts about a cluster's processes on this machine: where they listen, what they hold."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from evctl.provision.doctor.facts import (
    Control,
    LibraryPorts,
    ListeningSocket,
    Process,
    SecretFile,
)
from evctl.provision.doctor.library import library_ports
from evctl.provision.doctor.segments import segment_of
from evctl.provision.files import read_json

ANSWER_TIMEOUT_S: Final = 2.0


def look_at_engine(folder: Path, node: str, pid: int, shm: Path) -> Process:
    """folder: the cluster's state."""
    config = read_json(folder / "nodes" / f"{node}.config.json") or {}
    return Process(
        unit=node,
        pid=pid,
        listens=listening_sockets(pid),
        segment=segment_of(pid, node, shm),
        transfer=str(config.get("transfer", "shm")),
        listen_host=str(config.get("listen_host", "127.0.0.1")),
        advertise_host=str(config.get("advertise_host", "127.0.0.1")),
        library_ports=_library_ports_of(pid),
    )


def look_at_control(folder: Path, pid: int) -> Control:
    said = read_json(folder / "control.json") or {}
    said = said if said.get("pid") == pid else {}  # another life's words
    admin = str(said.get("admin", ""))
    return Control(
        process=Process("control", pid, listening_sockets(pid)),
        channel_port=_port_of(said.get("control_endpoint")),
        gateway_port=_port_of(said.get("gateway")),
        admin=admin,
        admin_mode=_mode_of(Path(admin)) if admin else None,
        admin_private=bool(admin) and _is_private(Path(admin).parent),
        admin_problem=_problem_of(admin),
    )


def listening_sockets(pid: int) -> tuple[ListeningSocket, ...] | None:
    """Every TCP socket that a process listens on; None if that cannot be found out."""
    import psutil

    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return None
    found = {
        ListeningSocket(connection.laddr.ip, connection.laddr.port)
        for connection in connections
        if connection.status == psutil.CONN_LISTEN and connection.laddr
    }
    return tuple(sorted(found))


def _library_ports_of(pid: int) -> LibraryPorts | None:
    import psutil

    try:
        return library_ports(psutil.Process(pid).environ())
    except (psutil.Error, OSError):
        return None


def _port_of(url: object) -> int:
    try:
        return urlsplit(str(url or "")).port or 0
    except ValueError:
        return 0


def _mode_of(path: Path) -> int | None:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None


def _is_private(folder: Path) -> bool:
    try:
        status = folder.stat()
    except OSError:
        return False
    return status.st_uid == os.getuid() and not status.st_mode & 0o077


def _problem_of(admin: str) -> str:
    if not admin:
        return "the control plane has not said where it is"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(ANSWER_TIMEOUT_S)
            probe.connect(admin)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def find_secrets(folder: Path, nodes: tuple[str, ...]) -> tuple[SecretFile, ...]:
    """The cluster's folder, and the files in it that hold secrets: keys of the control plane and
    of these nodes, the secret of block keys, and the config, which has the clients' keys."""
    names = ["", "control.key", "kv.secret", "cluster.json", *(f"keys/{n}.key" for n in nodes)]
    found = []
    for path in (folder / name for name in names):
        try:
            status = path.stat()
        except OSError:
            continue  # `up` makes what is missing
        mode = stat.S_IMODE(status.st_mode)
        found.append(SecretFile(str(path), mode, status.st_uid == os.getuid()))
    return tuple(found)
