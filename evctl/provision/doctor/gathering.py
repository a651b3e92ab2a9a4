"""All facts about one cluster on this machine. Reads only: a doctor changes nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from evctl.provision.doctor import machine
from evctl.provision.doctor.facts import Facts
from evctl.provision.doctor.geometry import find_layout
from evctl.provision.doctor.library import SHARED_OBJECTS, library_ports
from evctl.provision.doctor.processes import find_secrets, look_at_control, look_at_engine
from evctl.provision.doctor.segments import find_segments
from evctl.provision.driver import CONTROL, UnitState
from evctl.provision.files import read_json
from evctl.provision.local import LocalDriver
from evctl.provision.ports import problem_with

if TYPE_CHECKING:  # the schema costs 60 ms
    from evctl.config.cluster import ClusterConfig


def gather(config: ClusterConfig, nodes: tuple[str, ...], shm: Path = machine.SHM) -> Facts:
    """nodes: whose processes and keys to look at. shm: where KV memory lies."""
    driver = LocalDriver(config.name)
    folder = driver.directory
    pids = {
        unit.name: unit.pid
        for unit in driver.units()
        if unit.state is UnitState.RUNNING and unit.pid is not None
    }
    control = look_at_control(folder, pids[CONTROL]) if CONTROL in pids else None
    gateway = config.gateway
    ours = control is not None and gateway.port == control.gateway_port
    mooncake = config.transfer == "mooncake"
    return Facts(
        platform=machine.read_platform(),
        limits=machine.read_limits(),
        memory=machine.read_memory(shm),
        layout=find_layout(config.model, config.block_tokens, _recorded_model(folder)),
        segments=find_segments(shm),
        engines=tuple(
            look_at_engine(folder, node, pids[node], shm) for node in nodes if node in pids
        ),
        control=control,
        libraries=machine.find_libraries(),
        missing_libraries=machine.missing_objects(SHARED_OBJECTS) if mooncake else (),
        library_ports=library_ports(os.environ),
        rdma_devices=machine.rdma_devices(),
        addresses=machine.own_addresses(),
        guarded=machine.read_guarded(config.name),
        port_problem="" if ours or not gateway.port else problem_with(gateway.host, gateway.port),
        secrets=find_secrets(folder, nodes),
    )


def _recorded_model(folder: Path) -> Path | None:
    record = read_json(folder / "model.json") or {}
    return Path(str(record["directory"])) if record.get("directory") else None
