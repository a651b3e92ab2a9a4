"""Kernel, cores and limits: whether engines can run here at all, and how well."""

from __future__ import annotations

import re
from typing import Final

from evctl.provision.doctor.checks.memory import wanted_bytes
from evctl.provision.doctor.facts import Subject
from evctl.provision.doctor.report import Check, Level, told_bytes

ARCHITECTURES: Final = ("x86_64", "aarch64")
LEAST_KERNEL: Final = (4, 17)
"""The first that maps memory at a given address without replacing what lies there."""
LEAST_PYTHON: Final = (3, 11)
DESCRIPTORS_APART: Final = 64
"""Of the control plane, beside one for each client: engines, journal, logs."""


def cluster_file(subject: Subject) -> Check:
    config = subject.config
    found = f"{subject.source}: {len(config.nodes)} nodes, split {config.split}, {config.model}"
    return Check("cluster-file", Level.OK, found, "evctl up makes what this file says")


def platform(subject: Subject) -> Check:
    here = subject.facts.platform
    found = f"{here.system} {here.release}, {here.architecture}"
    why = "engines need what this kernel has, and run on x86-64 (tested) and aarch64"
    if here.system != "Linux" or here.architecture not in ARCHITECTURES:
        next_step = "run the cluster on Linux on x86-64 or aarch64; evctl itself works here"
        return Check("platform", Level.FAIL, found, why, next_step)
    kernel = tuple(int(number) for number in re.findall(r"\d+", here.release)[:2])
    if kernel < LEAST_KERNEL:
        why = "before 4.17 the kernel does not keep KV memory away from what is mapped already"
        return Check("platform", Level.WARN, found, why, "use a newer kernel")
    return Check("platform", Level.OK, found, why)


def python(subject: Subject) -> Check:
    version = subject.facts.platform.python
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    why = "engines run on this Python; 3.11 is the one that is tested"
    if numbers < LEAST_PYTHON:
        return Check("python", Level.FAIL, version, why, "install evctl for Python 3.11 or later")
    return Check("python", Level.OK, version, why)


def cores(subject: Subject) -> Check:
    nodes, ranks = len(subject.config.nodes), subject.config.ranks
    count = subject.facts.platform.cores
    each = f" of {ranks} ranks" if ranks > 1 else ""
    found = f"{nodes} nodes{each} on {count} core{'s' * (count != 1)}"
    why = "a process of an engine takes one core; with fewer they take turns, and all get slower"
    if nodes * ranks <= count:
        return Check("cores", Level.OK, found, why)
    most = max(1, count // ranks)
    next_step = f"have at most {most} nodes here, or trust no speed measured here"
    return Check("cores", Level.WARN, found, why, next_step)


def open_files(subject: Subject) -> Check:
    limit, config = subject.facts.limits.open_files, subject.config
    clients = config.max_queued + config.max_running * len(config.nodes)
    wanted = clients + DESCRIPTORS_APART
    found = "no limit" if limit is None else f"{limit} a process"
    why = f"a client's connection takes one, and {clients} requests may be here at a time"
    if limit is None or limit >= wanted:
        return Check("open-files", Level.INFO, found, why)
    next_step = f"ulimit -n {wanted} before evctl up, or lower max_queued"
    return Check("open-files", Level.WARN, found, why, next_step)


def locked_memory(subject: Subject) -> Check:
    limit = subject.facts.limits.locked_bytes
    found = "no limit" if limit is None else f"{told_bytes(limit)} a process"
    sizes = wanted_bytes(subject)
    needed = "" if sizes is None else f", here {told_bytes(sum(sizes))} a node"
    why = f"RDMA registers a node's whole KV memory as locked{needed}; nothing else needs it"
    return Check("locked-memory", Level.INFO, found, why)


def rdma(subject: Subject) -> Check:
    devices = subject.facts.rdma_devices
    found = ", ".join(devices) or "no device in /dev/infiniband"
    why = "engines of this version move KV over shared memory or TCP, RDMA devices or not"
    return Check("rdma", Level.INFO, found, why)


def huge_pages(subject: Subject) -> Check:
    memory = subject.facts.memory
    found = "none reserved"
    if memory.huge_pages:
        found = f"{memory.huge_pages} of {told_bytes(memory.huge_page_bytes)} reserved"
    why = "KV memory lies in /dev/shm and uses none: what is reserved for them is lost to it"
    return Check("huge-pages", Level.INFO, found, why)
