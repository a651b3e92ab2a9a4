"""Facts about a machine on which all is well, to change one of."""

from __future__ import annotations

from typing import Any

import msgspec

from evctl.core.kv import KvLayout
from evctl.provision.doctor.facts import (
    Control,
    Facts,
    Library,
    LibraryPorts,
    Limits,
    ListeningSocket,
    Memory,
    Platform,
    Process,
    SecretFile,
    Segment,
    Subject,
)
from evctl.provision.doctor.judgement import judge
from evctl.provision.doctor.report import Check
from tests.provision.conftest import config

GIB = 1 << 30
PORTS = LibraryPorts(15_000, 17_000)
LAYOUT = KvLayout(n_layers=4, planes=2, row_elements=128, dtype="float32", block_tokens=16)
"""A block has 64 KiB."""

WELL = Facts(
    platform=Platform("Linux", "6.1.0-13-amd64", "x86_64", "3.11.99", cores=4),
    limits=Limits(open_files=20_000, locked_bytes=8 << 20),
    memory=Memory(
        shm_total_bytes=8 * GIB,
        shm_free_bytes=8 * GIB,
        available_bytes=12 * GIB,
        group_free_bytes=None,
        huge_pages=0,
        huge_page_bytes=2 << 20,
    ),
    layout=LAYOUT,
    segments=(),
    engines=(),
    control=None,
    libraries=(Library("mooncake-transfer-engine-non-cuda", "0.3.13.post1"),),
    missing_libraries=(),
    library_ports=PORTS,
    rdma_devices=(),
    addresses=("10.0.0.5",),
    guarded=None,
    port_problem="",
    secrets=(),
)
CONTROL = Control(
    process=Process(
        "control", 10, (ListeningSocket("127.0.0.1", 40_001), ListeningSocket("127.0.0.1", 8080))
    ),
    channel_port=40_001,
    gateway_port=8080,
    admin="/state/admin.sock",
    admin_mode=0o600,
    admin_private=True,
    admin_problem="",
)


def segment(name: str = "evctl-0-b-l1", **changes: Any) -> Segment:
    whole = Segment(name, 1 << 20, 0o600, mine=True, alive=True)
    return msgspec.structs.replace(whole, **changes)


def engine(*listens: tuple[str, int], **changes: Any) -> Process:
    """n1 with the Mooncake transfer, its channel and these sockets."""
    sockets = (ListeningSocket("127.0.0.1", 40_002), *(ListeningSocket(*one) for one in listens))
    whole = Process("n1", 11, sockets, "evctl-0-b-l1", "mooncake", library_ports=PORTS)
    return msgspec.structs.replace(whole, **changes)


def secret(path: str = "/state/control.key", mode: int = 0o600, mine: bool = True) -> SecretFile:
    return SecretFile(path, mode, mine)


def subject(changes: dict[str, Any] | None = None, **facts: Any) -> Subject:
    """changes: of the config."""
    wanted = config(**{"l1_tokens": 16_384, "l2_tokens": 65_536, **(changes or {})})
    found = msgspec.structs.replace(WELL, **facts)
    return Subject(wanted, "clusters/c.yaml", wanted.node_names, found)


def judged(name: str, changes: dict[str, Any] | None = None, **facts: Any) -> Check:
    """One check on a machine where all else is well."""
    (found,) = (check for check in judge(subject(changes, **facts)) if check.name == name)
    return found
