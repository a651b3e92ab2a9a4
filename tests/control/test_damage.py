"""A state directory that was damaged, and one that cannot be written: told, and lived with."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from evctl.config.cluster import ClusterConfig
from evctl.control.plane import ControlPlane
from evctl.control.settings import ControlSettings
from evctl.core.errors import ConfigError, ConflictError, EvctlError
from tests.control.fake_engine import write_model
from tests.control.state import make_state


@pytest.fixture
def settings(tmp_path: Path) -> ControlSettings:
    return make_state(tmp_path / "state", model_directory=write_model(tmp_path / "model"))


async def _life(settings: ControlSettings, split: str = "") -> tuple[str, int, list[str]]:
    """One life of the control plane: its split, its generation, its warnings."""
    plane = ControlPlane(settings)
    plane.start()
    try:
        plane.publish("http://127.0.0.1:1")
        if split:
            plane.overrides.set_split(split, by="ann", force=True)
        told = [event.what for event in plane.events.since(0) if event.level == "warn"]
        return str(plane.state.split), plane.state.generation, told
    finally:
        await plane.close()


ROLES = {"generation": 4, "mode": "hold", "held_by": "", "hold_reason": ""}
DAMAGES = {
    "roles.json": [
        b"",
        b'{"generation": 4',
        b"[]",
        b"\xff\xfe",
        json.dumps({**ROLES, "roles": {"n1": "X", "n2": "P", "n3": "D"}}).encode(),
        json.dumps({**ROLES, "roles": {"n1": 5}}).encode(),
        json.dumps({**ROLES, "roles": {}, "mode": "rule"}).encode(),
        json.dumps({**ROLES, "roles": {}, "generation": 10**30}).encode(),
        json.dumps({**ROLES, "roles": {}, "generation": -1}).encode(),
        b"folder",
    ],
    "control.json": [
        b"",
        b'{"pid": 1, "start',
        b"7",
        json.dumps(
            {
                "pid": "one",
                "start_time": [],
                "boot_id": 5,
                "epoch": 10**40,
                "control_endpoint": {},
                "gateway": 1,
                "admin": None,
            }
        ).encode(),
    ],
    "splits.jsonl": [b"{}\n[]\nnonsense\n", b"\xff\n", b'{"sequence": 1e999}\n', b"folder"],
}


@pytest.mark.parametrize(
    ("name", "content"), [(name, content) for name in DAMAGES for content in DAMAGES[name]]
)
async def test_a_damaged_file_is_told_and_passed_over(
    settings: ControlSettings, name: str, content: bytes
) -> None:
    path = settings.directory / name
    assert (await _life(settings, "1P2D"))[1:] == (1, [])
    path.unlink()
    if content == b"folder":
        path.mkdir()
    else:
        path.write_bytes(content)
    if name == "splits.jsonl":
        split, generation, _ = await _life(settings)
        assert (split, generation) == ("1P2D", 1)
        return
    if content == b"folder":
        with pytest.raises(EvctlError):
            await _life(settings, "2P1D")
        return
    split, generation, told = await _life(settings)
    assert any(what.startswith(f"{name} in ") and "damaged" in what for what in told)
    assert generation == 1, "generations do not go back, whatever is lost"
    assert split == ("2P1D" if name == "roles.json" else "1P2D")
    assert (await _life(settings, "1P2D"))[0] == "1P2D", "and it can be written again"


async def test_a_foreign_file_among_the_segments_is_told(settings: ControlSettings) -> None:
    await _life(settings)
    for name in ("99999999999999999999-000000", "²-²", "x"):
        (settings.directory / "journal" / f"{name}.evj").write_bytes(b"?")
    assert len((await _life(settings))[2]) == 3
    plane = ControlPlane(settings)
    assert plane.epoch == 3
    plane.start()
    await plane.close()


@pytest.mark.parametrize("content", [b"", b"abc", b"x" * 33])
def test_a_damaged_secret_is_told_with_a_way_out(
    settings: ControlSettings, content: bytes
) -> None:
    path = settings.directory / "kv.secret"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        ControlPlane(settings)
    assert caught.value.code == "EV-1312"
    assert str(path) in caught.value.what
    assert f"rm {path}" in caught.value.next_step, "evctl up alone leaves it as it is"


async def test_a_second_control_plane_is_kept_out_whatever_lies_there(
    settings: ControlSettings,
) -> None:
    first = ControlPlane(settings)
    first.start()
    try:
        for content in DAMAGES["control.json"]:
            (settings.directory / "control.json").write_bytes(content)
            with pytest.raises(ConflictError):
                ControlPlane(settings)
    finally:
        await first.close()


@pytest.mark.parametrize("process", [{"pid": 10**30}, {"pid": -1}, {"pid": 0}, {"pid": "1"}])
async def test_a_damaged_record_of_an_engine_is_no_record(
    settings: ControlSettings, process: dict[str, object]
) -> None:
    path = settings.directory / "nodes" / "n1.json"
    path.write_text(json.dumps({"start_time": 1.0, **process}))
    plane = ControlPlane(settings)
    plane.start()
    assert plane.status().nodes[0].pid is None
    await plane.close()


# ---------------------------------------------------------------- what cannot be written


@contextmanager
def full_disk(directory: Path) -> Iterator[None]:
    """No file can be made in the folder."""
    real = os.open

    def refuse(path: str | Path, flags: int, mode: int = 0o777, **rest: int) -> int:
        if flags & os.O_CREAT and Path(path).parent == directory:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return real(path, flags, mode, **rest)

    os.open = refuse  # type: ignore[assignment]
    try:
        yield
    finally:
        os.open = real


@pytest.mark.parametrize("change", ["split", "mode"])
async def test_a_change_that_cannot_be_kept_is_not_made(
    settings: ControlSettings, change: str
) -> None:
    plane = ControlPlane(settings)
    plane.start()
    try:
        plane.overrides.set_split("1P2D", by="ann")
        before = plane.status()
        events = plane.events.sequence
        write: Callable[[], object] = {
            "split": lambda: plane.overrides.set_split("2P1D", by="bob", force=True),
            "mode": lambda: plane.overrides.set_mode("advise", by="bob"),
        }[change]
        with full_disk(settings.directory), pytest.raises(EvctlError) as caught:
            write()
        assert caught.value.code == "EV-1314"
        assert "No space left" in caught.value.why
        after = plane.status()
        assert (after.target_split, after.generation, after.mode, after.held_by) == (
            before.target_split,
            before.generation,
            before.mode,
            before.held_by,
        )
        assert plane.events.sequence == events
        plane.overrides.set_split("2P1D", by="bob", force=True)
        kept = msgspec.json.decode((settings.directory / "roles.json").read_bytes())
        assert kept["generation"] == plane.state.generation == before.generation + 1
        assert kept["held_by"] == "bob"
    finally:
        await plane.close()
    assert (await _life(settings))[:2] == ("2P1D", 2)


async def test_a_history_that_cannot_be_written_is_told_and_costs_nothing(
    settings: ControlSettings,
) -> None:
    (settings.directory / "splits.jsonl").mkdir()
    split, generation, told = await _life(settings, "1P2D")
    assert (split, generation) == ("1P2D", 1)
    assert any("history" in what for what in told)
    assert not any("EV-9002" in what for what in told), "no bug of ours"


@pytest.mark.system
def test_no_damage_ends_in_a_traceback(settings: ControlSettings) -> None:
    root = settings.directory
    config = ClusterConfig(name="test", nodes=3, split="2P1D", gateway={"port": 0})
    (root / "cluster.json").write_text(config.model_dump_json())
    (root / "journal").write_text("no folder")
    done = subprocess.run(
        [sys.executable, "-m", "evctl.serve", "--cluster-dir", str(root)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "error[EV-1315]" in done.stderr
    assert not any(line.startswith("Traceback") for line in done.stderr.splitlines())
