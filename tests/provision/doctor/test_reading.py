"""How facts are found, each reader by itself."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytest_socket

from evctl.config.paths import cache_root
from evctl.provision.doctor import machine
from evctl.provision.doctor.facts import LibraryPorts
from evctl.provision.doctor.firewall import guarded_ports, merged, nftables_rules
from evctl.provision.doctor.geometry import find_layout, node_bytes
from evctl.provision.doctor.library import LEAST_VERSION, library_ports, version_key
from evctl.provision.doctor.processes import find_secrets, look_at_control
from evctl.provision.doctor.segments import find_segments, segment_of
from evengine.models.registry import RandomModel, model_spec
from evengine.pool.headers import slot_stride
from evengine.pool.memory import SHM_DIRECTORY, KvMemory, sweep_stale


@pytest.fixture
def shm() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="test-", dir=SHM_DIRECTORY) as directory:
        yield Path(directory)


@pytest.mark.parametrize("block_tokens", [1, 16])
@pytest.mark.parametrize("model", ["random-6l384", "random-4l256-latent"])
def test_sizes_are_those_that_engines_take(
    tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch, model: str, block_tokens: int
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find_layout(model, block_tokens, None) is None
    card = _card(model)
    place = cache_root() / "models" / "0123"
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(card))
    layout = find_layout(model, block_tokens, tmp_path / "gone")
    assert layout is not None
    spec = model_spec(model)
    assert isinstance(spec, RandomModel)
    assert layout.block_bytes == spec.config.kv_token_bytes * block_tokens
    for l1_blocks, l2_blocks in ((3, 0), (5, 2)):
        pool_bytes = l2_blocks * slot_stride(layout.block_bytes)
        memory = KvMemory("n1", "b", l1_blocks, layout.block_bytes, shm, pool_bytes)
        assert sum(node_bytes(layout, l1_blocks, l2_blocks)) == memory.size_bytes
        memory.close()


def _card(model: str) -> dict[str, object]:
    import msgspec

    spec = model_spec(model)
    assert isinstance(spec, RandomModel)
    return dict(msgspec.to_builtins(spec.config))


@pytest.mark.parametrize("card", ['{"name": "m"}', '{"name": "m", "attention": "gqa"}', "["])
def test_a_damaged_model_is_an_unknown_one(tmp_path: Path, card: str) -> None:
    (tmp_path / "config.json").write_text(card)
    assert find_layout("m", 16, tmp_path) is None


def test_segments_of_the_living_and_the_dead(shm: Path) -> None:
    memory = KvMemory("n1", "boot", 4, 4096, shm)
    (shm / "evctl-dead-b-l1").write_bytes(b"x" * 10)
    (shm / "evctl-link").symlink_to("/etc/passwd")
    (shm / "something-else").touch()
    dead, alive = sorted(find_segments(shm), key=lambda s: s.alive is True)
    assert (dead.name, dead.alive, dead.mine, dead.size_bytes) == (
        "evctl-dead-b-l1",
        False,
        True,
        10,
    )
    assert (alive.name, alive.alive, alive.mode) == (memory.name, True, 0o600)
    assert segment_of(os.getpid(), "n1", shm) == memory.name
    assert segment_of(os.getpid(), "n2", shm) == "", "of its peers it holds some too"
    assert segment_of(2**22 + 1, "n1", shm) == ""
    memory.close()
    assert sweep_stale(shm) == ["evctl-dead-b-l1"], "what was called dead is what is swept"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, (15_000, 17_000, False)),
        ({"MC_MIN_RPC_PORT": "17101", "MC_MAX_RPC_PORT": "17110"}, (17_101, 17_110, False)),
        ({"MC_MIN_PRC_PORT": "17101", "MC_MAX_PRC_PORT": "17110"}, (17_101, 17_110, False)),
        ({"MC_MIN_RPC_PORT": "16990"}, (16_990, 17_000, False)),
        ({"MC_MIN_RPC_PORT": "18000"}, (15_000, 17_000, True)),
        ({"MC_MIN_RPC_PORT": "40000", "MC_MAX_RPC_PORT": "40010"}, (15_000, 17_000, True)),
        ({"MC_MIN_RPC_PORT": "32000", "MC_MAX_RPC_PORT": "33000"}, (15_000, 17_000, True)),
        ({"MC_MIN_RPC_PORT": "500", "MC_MAX_RPC_PORT": "600"}, (15_000, 17_000, True)),
        ({"MC_MIN_RPC_PORT": "x"}, (15_000, 17_000, True)),
        ({"MC_MIN_RPC_PORT": "61000", "MC_MAX_RPC_PORT": "61009"}, (61_000, 61_009, False)),
    ],
)
def test_the_range_is_read_as_the_library_reads_it(
    said: dict[str, str], expected: tuple[int, int, bool]
) -> None:
    assert library_ports(said) == LibraryPorts(*expected)


def test_versions_are_ordered() -> None:
    rising = ["no version", "0.3.9", "0.3.12rc1", "0.3.12", LEAST_VERSION, "0.3.13", "1.0.0"]
    assert sorted(rising, key=version_key) == rising


def test_our_table_is_found_again_as_nft_lists_it() -> None:
    listed = (
        "table inet evctl_c {\n\tchain input {\n"
        "\t\ttype filter hook input priority filter - 10; policy accept;\n"
        '\t\tiifname "lo" accept\n'
        "\t\tip saddr { 10.0.0.6, 10.0.0.7 } tcp dport { 15000-17000, 18111 } accept\n"
        "\t\ttcp dport { 15000-17000, 18111 } drop\n\t}\n}\n"
    )
    assert guarded_ports(listed) == ((15_000, 17_000), (18_111, 18_111))
    assert guarded_ports(listed.replace("{ 15000-17000, 18111 } drop", "22 drop")) == ((22, 22),)
    ours = "\n".join(nftables_rules("my-c", ((1, 2), (5, 5)), ()))
    assert guarded_ports(ours) == ((1, 2), (5, 5))
    assert "table inet evctl_my_c {" in ours


def test_ranges_of_a_set_do_not_overlap() -> None:
    assert merged([(5, 9), (1, 3), (4, 4), (7, 8), (20, 20)]) == ((1, 9), (20, 20))


def test_the_machine_is_read() -> None:
    here = machine.read_platform()
    assert here.system
    assert here.cores >= 1
    memory = machine.read_memory()
    assert memory.available_bytes is None or memory.available_bytes > 0
    assert memory.shm_free_bytes <= memory.shm_total_bytes
    assert machine.read_limits().open_files != 0
    assert not any(a.startswith("127.") or a == "::1" for a in machine.own_addresses())
    assert machine.missing_objects(("libc.so.6", "libnosuch.so.1"))[-1] == "libnosuch.so.1"


def test_what_holds_secrets_and_who_may_read_it(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    for name, mode in (("control.key", 0o600), ("keys/n1.key", 0o640), ("keys/n2.key", 0o600)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    found = {Path(s.path).name: (s.mode, s.mine) for s in find_secrets(tmp_path, ("n1",))}
    assert found["n1.key"] == (0o640, True)
    assert found.keys() == {tmp_path.name, "control.key", "n1.key"}


def test_an_admin_socket_that_nobody_answers(tmp_path: Path) -> None:
    pytest_socket.socket_allow_hosts(["127.0.0.1"], allow_unix_socket=True)
    path = tmp_path / "a.sock"
    said = {"pid": 7, "admin": str(path), "gateway": "http://127.0.0.1:81"}
    (tmp_path / "control.json").write_text(json.dumps(said))
    assert look_at_control(tmp_path, 7).admin_mode is None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    assert look_at_control(tmp_path, 7).admin_problem == "connection refused"
    listener.listen()
    there = look_at_control(tmp_path, 7)
    assert (there.admin_problem, there.gateway_port) == ("", 81)
    assert look_at_control(tmp_path, 8).gateway_port == 0, "another life said that"
    listener.close()
