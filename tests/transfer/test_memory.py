"""The shared segment: names, locks, room, addresses, and what a sweep may take."""

from __future__ import annotations

import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evctl.core.errors import ConflictError, RefusedError
from evengine.pool import memory as memory_module
from evengine.pool.memory import SHM_DIRECTORY, KvMemory, segment_name, sweep_stale

from .peers import fresh_boot

SWEEPER = """
import sys
from pathlib import Path
from evengine.pool.memory import sweep_stale
while True:
    sweep_stale(Path(sys.argv[1]))
"""
OWNER = """
import sys, time
from pathlib import Path
from evengine.pool.memory import KvMemory
memory = KvMemory("owner", sys.argv[1], 4, 4096, Path(sys.argv[2]))
print(memory.name, memory.base, flush=True)
time.sleep(60)
"""


@pytest.fixture
def shm() -> Iterator[Path]:
    """A directory of the same file system: a sweep gone wrong must not meet live clusters."""
    with tempfile.TemporaryDirectory(prefix="test-", dir=SHM_DIRECTORY) as directory:
        yield Path(directory)


def own(boot_id: str, shm: Path) -> tuple[subprocess.Popen[str], str, int]:
    """Another process that owns a segment; also its name and base."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, boot_id, str(shm)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    name, base = process.stdout.readline().split()
    return process, name, int(base)


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def test_blocks_are_disjoint_views_of_one_private_file(shm: Path) -> None:
    memory = KvMemory("n", fresh_boot(), 3, 4096, directory=shm)
    for slot in range(3):
        memory.block(slot)[:] = bytes([slot + 1]) * 4096
    assert memory.path.read_bytes() == b"\1" * 4096 + b"\2" * 4096 + b"\3" * 4096
    assert stat.S_IMODE(memory.path.stat().st_mode) == 0o600
    assert memory.path.stat().st_blocks * 512 >= 3 * 4096  # pages taken: no SIGBUS later
    for slot in (-1, 3):
        with pytest.raises(IndexError):
            memory.block(slot)
    memory.close()
    memory.close()
    assert not memory.path.exists()


def test_memory_is_unmapped_by_close_or_by_the_last_view_of_it(shm: Path) -> None:
    memory = KvMemory("n", fresh_boot(), 1, 4096, directory=shm)
    start = f"{memory.base:x}-"
    view = memory.block(0)
    view[0] = 7
    memory.close()
    assert view[0] == 7
    assert start in Path("/proc/self/maps").read_text()
    assert not memory.path.exists()
    view.release()
    assert start not in Path("/proc/self/maps").read_text()


def test_names_separate_nodes_and_lives_and_cannot_leave_the_directory(shm: Path) -> None:
    names = {
        segment_name(node, boot)
        for node in ("a", "b", "../a", "a/b")
        for boot in ("1", "2", "../1", "1/2", "x" * 256, "é", "-l1")
    }
    assert len(names) == 4 * 7
    for name in names:
        assert Path(name).name == name
        assert name.startswith("evctl-")
        assert len(name) < 128


@pytest.mark.system
def test_a_sweep_takes_the_dead_and_leaves_the_living(shm: Path) -> None:
    living, living_name, _ = own(fresh_boot(), shm)
    dead, dead_name, _ = own(fresh_boot(), shm)
    stopped, stopped_name, _ = own(fresh_boot(), shm)
    stopped.send_signal(19)
    mine = KvMemory("mine", fresh_boot(), 1, 4096, directory=shm)
    foreign = shm / "other"
    foreign.touch()
    end(dead)
    swept = sweep_stale(shm)
    assert dead_name in swept
    assert not (shm / dead_name).exists()
    for name in (living_name, stopped_name, mine.name, foreign.name):
        assert name not in swept
        assert (shm / name).exists()
    foreign.unlink()
    mine.close()
    for process in (living, stopped):
        end(process)
    assert {living_name, stopped_name} <= set(sweep_stale(shm))


@pytest.mark.system
def test_a_life_cannot_take_the_segment_of_another(shm: Path) -> None:
    boot = fresh_boot()
    owner, name, _ = own(boot, shm)
    with pytest.raises(ConflictError) as caught:
        KvMemory("owner", boot, 4, 4096, directory=shm)
    assert caught.value.code == "EV-4103"
    assert (shm / name).exists()
    end(owner)
    sweep_stale(shm)
    again = KvMemory("owner", boot, 4, 4096, directory=shm)
    again.close()


@pytest.mark.system
def test_each_life_is_mapped_somewhere_else(shm: Path) -> None:
    """Farther apart than the kernel alone would put them: 1 TiB holds its whole random range."""
    bases = []
    for _ in range(6):
        owner, _, base = own(fresh_boot(), shm)
        bases.append(base)
        end(owner)
    sweep_stale(shm)
    assert max(bases) - min(bases) > 2 << 40
    assert len(set(bases)) == 6


def test_a_segment_that_does_not_fit_is_refused_with_the_numbers(
    monkeypatch: pytest.MonkeyPatch, shm: Path
) -> None:
    with pytest.raises(RefusedError) as caught:
        KvMemory("n", boot := fresh_boot(), 1 << 30, 1 << 20, directory=shm)
    assert caught.value.code == "EV-4101"
    assert str(1 << 50) in caught.value.why
    monkeypatch.setattr(memory_module, "available_bytes", lambda: (256 << 20) + 4095)
    with pytest.raises(RefusedError) as caught:
        KvMemory("n", boot, 1, 4096, directory=shm)
    assert caught.value.code == "EV-4102"
    assert "4096" in caught.value.why
    assert "4095" in caught.value.why
    assert not (shm / segment_name("n", boot)).exists()
    monkeypatch.setattr(memory_module, "available_bytes", lambda: (256 << 20) + 4096)
    KvMemory("n", boot, 1, 4096, directory=shm).close()


@pytest.mark.system
def test_a_sweep_beside_starting_owners_never_takes_a_living_segment(shm: Path) -> None:
    """The file is locked before it has a name: there is no moment in which it looks dead."""
    sweeper = subprocess.Popen(
        [
            sys.executable,
            "-c",
            SWEEPER,
            str(shm),
        ],
        text=True,
    )
    end_s = time.monotonic() + 1.0
    while time.monotonic() < end_s:
        memory = KvMemory("busy", fresh_boot(), 1, 4096, directory=shm)
        assert memory.path.exists()
        time.sleep(0.0005)
        assert memory.path.exists()
        memory.close()
    end(sweeper)
