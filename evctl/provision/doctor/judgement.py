"""All checks, in the order in which somebody reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from evctl.provision.doctor.checks import access, machine, memory, transfer
from evctl.provision.doctor.facts import Subject
from evctl.provision.doctor.report import Check

CHECKS: Final[tuple[Callable[[Subject], Check], ...]] = (
    machine.cluster_file,
    machine.platform,
    machine.python,
    machine.cores,
    memory.shared_memory,
    memory.main_memory,
    memory.pool,
    memory.stale_segments,
    access.segments,
    transfer.library,
    transfer.data_ports,
    transfer.channels,
    access.gateway_port,
    access.gateway_access,
    access.admin_socket,
    access.keys,
    machine.open_files,
    machine.locked_memory,
    machine.rdma,
    machine.huge_pages,
)


def judge(subject: Subject) -> tuple[Check, ...]:
    return tuple(check(subject) for check in CHECKS)
