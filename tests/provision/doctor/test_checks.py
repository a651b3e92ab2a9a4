"""What the facts mean: each check with each of its levels."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from evctl.provision.doctor.facts import Library, LibraryPorts, Limits, Platform
from evctl.provision.doctor.judgement import CHECKS, judge
from evctl.provision.doctor.report import Level, counts, passed, told_bytes
from tests.provision.doctor.findings import (
    CONTROL,
    GIB,
    WELL,
    engine,
    judged,
    secret,
    segment,
    subject,
)

MOONCAKE = (("0.0.0.0", 15_575), ("::", 15_682))
OPEN = {"engines": (engine(*MOONCAKE),)}
BY_MOONCAKE = {"transfer": "mooncake"}
OLD = (Library("x", "0.3.12"),)
TAKEN = {"port_problem": "port 8080: in use"}
FOR_ALL = {"host": "0.0.0.0"}
KEYS = {"12345678": "tenant"}


def platform(**changes: Any) -> dict[str, Any]:
    return {"platform": msgspec.structs.replace(WELL.platform, **changes)}


def memory(**changes: Any) -> dict[str, Any]:
    return {"memory": msgspec.structs.replace(WELL.memory, **changes)}


def control(**changes: Any) -> dict[str, Any]:
    return {"control": msgspec.structs.replace(CONTROL, **changes)}


# check, level, part of what is said, facts, changes of the config
CASES: list[tuple[str, str, str, dict[str, Any], dict[str, Any]]] = [
    ("cluster-file", "ok", "clusters/c.yaml: 3 nodes, split 2P1D", {}, {}),
    ("platform", "ok", "Linux 6.1.0-13-amd64, x86_64", {}, {}),
    ("platform", "ok", "aarch64", platform(architecture="aarch64"), {}),
    ("platform", "warn", "Linux 4.9.0", platform(release="4.9.0"), {}),
    ("platform", "fail", "Darwin", platform(system="Darwin"), {}),
    ("platform", "fail", "riscv64", platform(architecture="riscv64"), {}),
    ("python", "ok", "3.11.99", {}, {}),
    ("python", "fail", "3.9.2", platform(python="3.9.2"), {}),
    ("cores", "ok", "3 nodes on 4 cores", {}, {}),
    ("cores", "warn", "3 nodes on 1 core", platform(cores=1), {}),
    ("shared-memory", "ok", "960.8 MiB for 3 nodes to come; 8.00 GiB free", {}, {}),
    ("shared-memory", "warn", "to come", memory(shm_free_bytes=GIB), {}),
    ("shared-memory", "fail", "64.0 MiB free in /dev/shm", memory(shm_free_bytes=64 << 20), {}),
    ("shared-memory", "info", "unknown: model random-4l256 is not on", {"layout": None}, {}),
    ("main-memory", "ok", "11.75 GiB free in MemAvailable less 256 MiB", {}, {}),
    ("main-memory", "info", "unknown", memory(available_bytes=None), {}),
    ("main-memory", "fail", "control group", memory(group_free_bytes=512 << 20), {}),
    ("main-memory", "fail", "0.0 MiB free", memory(available_bytes=100 << 20), {}),
    ("pool", "ok", "L1 1024 blocks, L2 4096 blocks", {}, {}),
    ("pool", "warn", "L2 0 blocks", {}, {"l2_tokens": 0}),
    ("pool", "warn", "L1 1024 blocks, L2 512 blocks", {}, {"l2_tokens": 8192}),
    ("stale-segments", "ok", "none", {"segments": (segment(),)}, {}),
    ("stale-segments", "ok", "none; 1 of other", {"segments": (segment(mine=False),)}, {}),
    ("stale-segments", "warn", "1 segment of dead", {"segments": (segment(alive=False),)}, {}),
    ("segment-rights", "ok", "none in /dev/shm", {}, {}),
    ("segment-rights", "ok", "1 in /dev/shm", {"segments": (segment(),)}, {}),
    ("segment-rights", "fail", "has mode 0644", {"segments": (segment(mode=0o644),)}, {}),
    ("transfer", "ok", "shm", {"libraries": ()}, {}),
    ("transfer", "ok", "0.3.13.post1", {}, BY_MOONCAKE),
    ("transfer", "fail", "no mooncake", {"libraries": ()}, BY_MOONCAKE),
    ("transfer", "fail", "x 0.3.12", {"libraries": OLD}, BY_MOONCAKE),
    ("transfer", "fail", "without libx", {"missing_libraries": ("libx",)}, BY_MOONCAKE),
    ("data-ports", "ok", "no engine listens for KV", {}, {}),
    ("data-ports", "ok", "no engine", {"engines": (engine(transfer="shm"),)}, {}),
    ("data-ports", "warn", "will listen on all interfaces", {}, BY_MOONCAKE),
    ("data-ports", "warn", "n1 0.0.0.0:15575, n1 [::]:15682", OPEN, {}),
    ("data-ports", "fail", "public", {**OPEN, "addresses": ("8.8.4.4",)}, {}),
    ("data-ports", "ok", "shuts them", {**OPEN, "guarded": ((15_000, 17_000),)}, {}),
    ("data-ports", "warn", "not loaded", {**OPEN, "guarded": ((15_600, 17_000),)}, {}),
    ("data-ports", "ok", "no address but loopback", {**OPEN, "addresses": ()}, {}),
    ("channels", "info", "nothing runs", {}, {}),
    ("channels", "ok", "control 127.0.0.1:40001 for engines", {"control": CONTROL}, {}),
    ("channels", "ok", "n1 127.0.0.1:40002 for its peers", OPEN, {}),
    ("channels", "warn", "for unknown", control(channel_port=1), {}),
    ("channels", "warn", "where n1 listen", {"engines": (engine(listens=None),)}, {}),
    ("gateway-port", "ok", "port 8080: free", {}, {}),
    ("gateway-port", "ok", "any free port", {}, {"gateway": {"port": 0}}),
    ("gateway-port", "ok", "served by this cluster", {"control": CONTROL}, {}),
    ("gateway-port", "warn", "on port 9, not 8080", control(gateway_port=9), {}),
    ("gateway-port", "warn", "in use", TAKEN, {}),
    ("gateway-port", "fail", "in use", TAKEN, {"gateway": {"port_strict": True}}),
    ("gateway-access", "ok", "127.0.0.1, no client keys", {}, {}),
    ("gateway-access", "ok", "1 client key", {}, {"gateway": FOR_ALL, "api_keys": KEYS}),
    ("gateway-access", "warn", "0.0.0.0, no client keys", {}, {"gateway": FOR_ALL}),
    ("admin-socket", "info", "does not run", {}, {}),
    ("admin-socket", "ok", "mode 0600", {"control": CONTROL}, {}),
    ("admin-socket", "ok", "mode 0666", control(admin_mode=0o666), {}),
    ("admin-socket", "fail", "mode 0666", control(admin_mode=0o666, admin_private=False), {}),
    ("admin-socket", "fail", "refused", control(admin_problem="refused"), {}),
    ("keys", "info", "none yet", {}, {}),
    ("keys", "ok", "1 files and folders, for", {"secrets": (secret(),)}, {}),
    ("keys", "fail", "control.key has mode 0640", {"secrets": (secret(mode=0o640),)}, {}),
    ("keys", "fail", "is another's", {"secrets": (secret(mine=False),)}, {}),
    ("open-files", "info", "20000 a process", {}, {}),
    ("open-files", "info", "no limit", {"limits": Limits(None, None)}, {}),
    ("open-files", "warn", "256 a process", {"limits": Limits(256, None)}, {}),
    ("locked-memory", "info", "8.0 MiB a process", {}, {}),
    ("locked-memory", "info", "no limit", {"limits": Limits(None, None), "layout": None}, {}),
    ("rdma", "info", "no device", {}, {}),
    ("rdma", "info", "uverbs0", {"rdma_devices": ("uverbs0",)}, {}),
    ("huge-pages", "info", "none reserved", {}, {}),
    ("huge-pages", "info", "4 of 2.0 MiB", memory(huge_pages=4), {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "level", "said", "facts", "changes"), CASES)
def test_level(
    name: str, level: str, said: str, facts: dict[str, Any], changes: dict[str, Any]
) -> None:
    check = judged(name, changes, **facts)
    assert (check.level.value, said in check.found) == (level, True), check
    assert check.why
    if check.level in (Level.WARN, Level.FAIL):
        assert check.next_step


def test_every_check_is_in_the_table() -> None:
    names = {check.name for check in judge(subject())}
    assert len(names) == len(CHECKS)
    assert names == {case[0] for case in CASES}


def test_what_has_its_memory_needs_none() -> None:
    check = judged("shared-memory", engines=(engine(),), **memory(shm_free_bytes=650 << 20))
    assert "640.5 MiB for 2 nodes to come" in check.found
    check = judged("shared-memory", engines=(engine(segment=""),))
    assert "960.8 MiB for 3 nodes" in check.found, "it is about to take it"


def test_what_the_dead_hold_is_as_good_as_free() -> None:
    dead = segment(alive=False, size_bytes=2 * GIB)
    check = judged("shared-memory", segments=(dead,), **memory(shm_free_bytes=64 << 20))
    assert check.level is Level.OK
    assert "2.00 GiB of dead engines counted as free" in check.found
    check = judged("stale-segments", segments=(dead,) * 10)
    assert "20.00 GiB" in check.found
    assert check.lines[0] == "rm /dev/shm/evctl-0-b-l1"
    assert check.lines[-1] == "# and 2 more"


def test_a_port_is_shut_by_whole_ranges() -> None:
    """The library draws other ports at each start."""
    check = judged("data-ports", engines=(engine(*MOONCAKE, ("0.0.0.0", 18_111)),))
    assert "    tcp dport { 15000-17000, 18111 } drop" in check.lines
    assert (
        "iptables -I INPUT ! -i lo -p tcp -m multiport --dports 15000:17000,18111 -j DROP"
        in check.lines
    )
    there = engine(("::", 21_004), library_ports=LibraryPorts(21_000, 21_010))
    check = judged("data-ports", engines=(there,))
    assert "    tcp dport { 21000-21010 } drop" in check.lines


def test_other_machines_of_the_pool_are_let_in() -> None:
    far = engine(*MOONCAKE, advertise_host="10.0.0.6", listen_host="10.0.0.6")
    sixth = engine(*MOONCAKE, advertise_host="fd00::6")
    lines = judged("data-ports", engines=(far, sixth)).lines
    assert "    ip saddr { 10.0.0.6 } tcp dport { 15000-17000, 40002 } accept" not in lines
    assert any("ip saddr { 10.0.0.6 } tcp dport" in line for line in lines)
    assert any("ip6 saddr { fd00::6 } tcp dport" in line for line in lines)
    assert any(line.startswith("ip6tables -I INPUT -s fd00::6 -p tcp") for line in lines)
    order = [line.rpartition(" ")[2] for line in lines if line.startswith("iptables")]
    assert order == ["DROP", "ACCEPT"], "each goes in front of those before it"


@pytest.mark.parametrize(
    ("host", "port", "is_open"),
    [
        ("127.0.0.1", 40_003, False),
        ("10.0.0.5", 40_003, True),
        ("0.0.0.0", 40_003, False),  # its channel is to be there, and no port of the library's
        ("0.0.0.0", 15_001, True),
        ("::", 40_003, True),
    ],
)
def test_in_doubt_a_socket_is_open(host: str, port: int, is_open: bool) -> None:
    there = engine((host, port), listen_host="0.0.0.0")
    check = judged("data-ports", engines=(there,))
    assert (f":{port}" in check.found) is is_open
    unread = engine(("0.0.0.0", 40_003), listen_host="0.0.0.0", library_ports=None)
    assert judged("data-ports", engines=(unread,)).level is Level.WARN


def test_a_range_that_the_library_does_not_take_is_told() -> None:
    check = judged("data-ports", {"transfer": "mooncake"}, library_ports=LibraryPorts(1, 2, True))
    assert "What is set there now is not taken." in check.next_step


def test_counts_and_the_verdict() -> None:
    checks = judge(subject())
    assert passed(checks)
    assert counts(checks) == {"ok": 13, "info": 7, "warn": 0, "fail": 0}
    checks = judge(subject(platform=Platform("Darwin", "23", "arm64", "3.11.7", 4)))
    assert not passed(checks)


def test_sizes_are_told_with_their_unit() -> None:
    assert [told_bytes(n) for n in (0, 1 << 20, 3 << 29)] == ["0.0 MiB", "1.0 MiB", "1.50 GiB"]
