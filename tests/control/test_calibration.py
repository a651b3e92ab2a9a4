"""The live shell of the cost model: it learns from what engines say, keeps it, and starts warm."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evctl.control.metrics import render_metrics
from evctl.control.plane import ControlPlane
from evctl.control.replay import replay
from evctl.core.costs import Coefficients
from evctl.core.events import CoefficientsFitted, FromNode, IterationSample
from evctl.core.status import ClusterStatus
from evctl.core.times_status import NodeTimes
from evctl.policy.state import StepResult
from evctl.wire.messages import WarmUp
from tests.control.fake_engine import FakeEngine
from tests.control.state import until
from tests.control.test_engines import Stage
from tests.policy.costmodel.generated import TRUTH, decode, prefill

HARDWARE = {"hardware": "a cpu", "engine": "evengine 1"}
NOTHING = StepResult((), (), None)
MODEL = msgspec.structs.replace(
    TRUTH,
    errors=(1e-4, 1e-6, 1e-9, math.inf, 1e-4, 0.0, 1e-5, 0.0),
    unidentified=("c3",),
    windows=(24, 23),
    residual=0.04,
    context_tokens=812.5,
)


class Life(Stage):
    """A cluster whose control plane may end and come again."""

    async def restart(self) -> None:
        await self.close()
        self.engines.clear()
        self.plane = ControlPlane(self.settings)
        self.plane.start()


def work(plane: ControlPlane, node: str, seconds: float, start_s: float = 0.0) -> None:
    """Tell the observer of iterations of both kinds, in time that is made up."""
    rng = random.Random(1)
    boot_id = plane.state.nodes[node].boot_id
    for index in range(int(seconds * 10)):
        sample = (prefill if index % 2 else decode)(TRUTH, rng, 0.05)
        event = FromNode(node, boot_id, sample)
        plane.calibration.observe(start_s + index / 10, event, NOTHING)


def one_phase(
    plane: ControlPlane,
    node: str,
    phase: Callable[[Coefficients, random.Random, float], IterationSample],
    seconds: float,
    start_s: float = 0.0,
    truth: Coefficients = TRUTH,
) -> None:
    rng, boot_id = random.Random(1), plane.state.nodes[node].boot_id
    for index in range(int(seconds * 10)):
        event = FromNode(node, boot_id, phase(truth, rng, 0.05))
        plane.calibration.observe(start_s + index / 10, event, NOTHING)


def times(plane: ControlPlane, node: str) -> NodeTimes:
    return next(one for one in plane.status().times if one.node == node)


async def joined(stage: Stage, name: str, **hello: Any) -> FakeEngine:
    engine = stage.engines[name] = FakeEngine(stage.plane, name, **hello)
    await until(lambda: name in stage.alive(), 5, "the engine to join")
    return engine


def learned(plane: ControlPlane, node: str = "n1") -> Coefficients | None:
    return plane.state.nodes[node].coefficients


def told(plane: ControlPlane) -> list[str]:
    return [record.what for record in plane.events.since(0)]


async def test_a_node_warms_up_is_learned_and_then_works_in_its_role(tmp_path: Path) -> None:
    stage = Life(tmp_path, warm_up_s=60.0)
    plane = stage.plane
    try:
        engine = await joined(stage, "n1", **HARDWARE)
        await until(lambda: engine.of(WarmUp), 5, "word of the warm-up")
        assert engine.of(WarmUp) == [WarmUp(on=True)]
        work(plane, "n1", 59.0)
        assert learned(plane) is None
        (before,) = [m for m in plane.status().times if m.node == "n1"]
        assert (before.source, before.warming, before.coefficients) == ("prior", True, {})
        work(plane, "n1", 12.0, start_s=59.0)
        await until(lambda: learned(plane), 10, "the fit")
        await until(lambda: len(engine.of(WarmUp)) == 2, 5, "the end of the warm-up")
        assert engine.of(WarmUp)[1] == WarmUp(on=False)
        found = learned(plane)
        assert found is not None
        assert found.c1_s == pytest.approx(TRUTH.c1_s, rel=0.1)
        work(plane, "n1", 12.0, start_s=71.0)
        (model,) = [m for m in plane.status().times if m.node == "n1"]
        assert (model.source, model.warming) == ("fitted", False)
        assert {one.kind for one in model.iterations} == {"prefill", "decode"}
        assert all(0.0 < one.mean < 0.1 for one in model.iterations)
        assert model.off == pytest.approx(0.0, abs=0.1)
        metrics = render_metrics(plane.snapshot).decode()
        assert 'evctl_node_warming{node="n1"} 0.0' in metrics
        assert 'evctl_iteration_error_ratio_count{kind="prefill",node="n1"} 60.0' in metrics
        assert 'evctl_model_seconds{node="n1",term="c1"}' in metrics
        encoded = msgspec.json.encode(plane.status())
        again = msgspec.json.decode(encoded, type=ClusterStatus)
        assert [m.coefficients for m in again.times if m.node == "n1"] == [model.coefficients]
    finally:
        await stage.close()
    report = replay(tmp_path / "state" / "journal")
    assert report.equal, report
    assert report.steps >= 2  # joined, fitted


async def test_a_restart_starts_warm_and_says_so(tmp_path: Path) -> None:
    stage = Life(tmp_path, warm_up_s=60.0)
    try:
        await joined(stage, "n1", **HARDWARE)
        work(stage.plane, "n1", 80.0)
        folder = stage.plane.directory.root / "times"
        await until(lambda: list(folder.glob("*.json")), 10, "the model to be kept")
        before = learned(stage.plane)
        await stage.restart()
        engine = await joined(stage, "n1", **HARDWARE)
        record = stage.plane.state.nodes["n1"]
        assert (record.coefficients, record.model_source) == (before, "kept")
        assert any("kept from an earlier life" in what for what in told(stage.plane))
        await until(lambda: len(engine.of(WarmUp)) == 2, 5, "word that none is needed")
        assert engine.of(WarmUp)[-1] == WarmUp(on=False)
        # another machine has other times
        other = await joined(stage, "n2", **{**HARDWARE, "hardware": "another"})
        assert stage.plane.state.nodes["n2"].coefficients is None
        await until(lambda: other.of(WarmUp), 5, "its own warm-up")
    finally:
        await stage.close()


async def test_a_damaged_file_is_ignored_with_a_warning(tmp_path: Path) -> None:
    stage = Life(tmp_path, warm_up_s=60.0)
    try:
        await joined(stage, "n1", **HARDWARE)
        work(stage.plane, "n1", 80.0)
        folder = stage.plane.directory.root / "times"
        await until(lambda: list(folder.glob("*.json")), 10, "the model to be kept")
        (path,) = folder.glob("*.json")
        await stage.restart()
        path.write_bytes(path.read_bytes()[:-40])
        await joined(stage, "n1", **HARDWARE)
        assert stage.plane.state.nodes["n1"].coefficients is None
        assert any("damaged and ignored" in what for what in told(stage.plane))
    finally:
        await stage.close()


async def test_without_warm_up_a_node_is_learned_from_the_work_that_comes(tmp_path: Path) -> None:
    stage = Life(tmp_path)
    try:
        engine = await joined(stage, "n1", **HARDWARE)
        work(stage.plane, "n1", 140.0)
        record = stage.plane.state.nodes["n1"]
        await until(lambda: record.coefficients is not None, 10, "the fit")
        assert engine.of(WarmUp) == []
    finally:
        await stage.close()


async def test_nodes_in_one_role_each_complete_one_another(tmp_path: Path) -> None:
    """Without warm-up no node runs both phases; nodes that are alike know both between them."""
    stage = Life(tmp_path)
    plane = stage.plane
    try:
        for name in ("n1", "n2"):
            await joined(stage, name, **HARDWARE)
        other = await joined(stage, "n3", **{**HARDWARE, "hardware": "another"})
        one_phase(plane, "n1", prefill, 130.0)
        await until(lambda: times(plane, "n1").waits_for, 5, "a try")
        assert learned(plane, "n1") is None
        one_phase(plane, "n2", decode, 130.0)
        await until(lambda: learned(plane, "n1") and learned(plane, "n2"), 10, "two models")
        first, second = times(plane, "n1"), times(plane, "n2")
        assert (first.source, first.borrowed) == ("borrowed", {"decode": "n2"})
        assert (second.source, second.borrowed) == ("borrowed", {"prefill": "n1"})
        assert learned(plane, "n1") == learned(plane, "n2")
        model = learned(plane, "n1")
        assert model is not None
        assert model.c1_s == pytest.approx(TRUTH.c1_s, rel=0.1)
        assert model.d2_s == pytest.approx(TRUTH.d2_s, rel=0.1)
        assert learned(plane, "n3") is None  # another machine
        assert any("borrowed" in what and "alike" in what for what in told(plane))
        # Once it has run the other phase for long enough, its own terms win.
        slower = msgspec.structs.replace(TRUTH, d0_s=0.02, d2_s=2e-3)
        one_phase(plane, "n1", decode, 130.0, start_s=200.0, truth=slower)
        await until(lambda: times(plane, "n1").source == "fitted", 10, "its own terms")
        again = learned(plane, "n1")
        assert again is not None
        assert again.d2_s == pytest.approx(2e-3, rel=0.1)
        assert again.c1_s == model.c1_s
        assert times(plane, "n1").borrowed == {}
        assert other.of(WarmUp) == []
    finally:
        await stage.close()
    report = replay(tmp_path / "state" / "journal")
    assert report.equal, report


async def test_a_node_in_warm_up_does_not_borrow(tmp_path: Path) -> None:
    stage = Life(tmp_path, warm_up_s=60.0)
    plane = stage.plane
    try:
        for name in ("n1", "n2"):
            await joined(stage, name, **HARDWARE)
        work(plane, "n1", 80.0)
        await until(lambda: learned(plane, "n1"), 10, "the fit")
        assert times(plane, "n2").warming
        assert learned(plane, "n2") is None
    finally:
        await stage.close()


async def test_a_newcomer_borrows_all(tmp_path: Path) -> None:
    stage = Life(tmp_path)
    plane = stage.plane
    (stage.plane.directory.root / "times").write_text("a file, so that nothing can be kept")
    try:
        await joined(stage, "n1", **HARDWARE)
        work(plane, "n1", 140.0)
        await until(lambda: learned(plane, "n1"), 10, "the fit")
        await joined(stage, "n2", **HARDWARE)
        await until(lambda: learned(plane, "n2"), 5, "a loan")
        assert times(plane, "n2").borrowed == {"prefill": "n1", "decode": "n1"}
    finally:
        await stage.close()


async def test_too_little_is_told_and_not_fitted(tmp_path: Path) -> None:
    stage = Life(tmp_path, warm_up_s=60.0)
    plane = stage.plane
    try:
        await joined(stage, "n1", **HARDWARE)
        rng, boot_id = random.Random(1), plane.state.nodes["n1"].boot_id
        for index in range(700):
            event = FromNode("n1", boot_id, prefill(TRUTH, rng, 0.05))
            plane.calibration.observe(index / 10, event, NOTHING)
        await until(lambda: plane.status().times[0].waits_for, 5, "a try")
        assert plane.status().times[0].waits_for == "decode: 0 of 24 iterations"
        assert plane.state.nodes["n1"].coefficients is None
    finally:
        await stage.close()


async def test_an_iteration_that_cannot_be_does_not_keep_a_node_from_being_learned(
    tmp_path: Path,
) -> None:
    stage = Life(tmp_path)
    plane = stage.plane
    try:
        await joined(stage, "n1", **HARDWARE)
        good = prefill(TRUTH, random.Random(1), 0.05)
        boot_id = plane.state.nodes["n1"].boot_id
        for busy_s in (math.nan, math.inf):
            bad = msgspec.structs.replace(good, busy_s=busy_s)
            plane.calibration.observe(0.0, FromNode("n1", boot_id, bad), NOTHING)
        work(plane, "n1", 140.0)
        await until(lambda: learned(plane) is not None, 10, "the fit")
        assert not any("fit failed" in line for line in told(plane))
    finally:
        await stage.close()


async def test_an_engine_that_does_not_say_what_it_is_leaves_nothing(tmp_path: Path) -> None:
    stage = Life(tmp_path)
    try:
        await joined(stage, "n1")
        work(stage.plane, "n1", 140.0)
        record = stage.plane.state.nodes["n1"]
        await until(lambda: record.coefficients is not None, 10, "the fit")
        assert not (stage.plane.directory.root / "times").exists()
    finally:
        await stage.close()


async def test_a_drift_is_told_and_learned_anew(tmp_path: Path) -> None:
    stage = Life(tmp_path)
    try:
        await joined(stage, "n1", **HARDWARE)
        plane = stage.plane
        half = {f: getattr(TRUTH, f) / 2 for f in TRUTH.__struct_fields__ if f.endswith("_s")}
        wrong = msgspec.structs.replace(MODEL, **half)
        plane.writer.feed(CoefficientsFitted("n1", wrong, "fitted"))
        work(plane, "n1", 340.0)
        assert any("drifted" in what for what in told(plane))
        await until(lambda: learned(plane) != wrong, 10, "a new fit")
        found = learned(plane)
        assert found is not None
        assert found.c1_s == pytest.approx(TRUTH.c1_s, rel=0.1)
    finally:
        await stage.close()


async def test_the_models_are_told_once_by_term_with_errors(tmp_path: Path) -> None:
    stage = Life(tmp_path)
    plane = stage.plane
    try:
        plane.writer.feed(CoefficientsFitted("n1", MODEL, "fitted"))
        status = plane.status()
        known = next(one for one in status.times if one.node == "n1")
        assert known.coefficients["c1"] == MODEL.c1_s
        assert (known.errors["c0"], known.errors["c3"]) == (1e-4, None)
        assert (known.unidentified, known.windows, known.residual) == (("c3",), (24, 23), 0.04)
        assert msgspec.json.encode(status).count(b'"windows":[24,23]') == 1
        assert b"null" not in msgspec.json.encode(known.coefficients)
        plane.writer.feed(
            CoefficientsFitted("n1", msgspec.structs.replace(MODEL, windows=(0, 0)), "fitted")
        )
        assert times(plane, "n1").residual is None
    finally:
        await stage.close()


async def test_another_engine_under_the_same_name_is_learned_anew(tmp_path: Path) -> None:
    """An upgrade: what the old one took stays in force, and is fitted again from the node's own
    work, one phase of it if that is all there is."""
    stage = Life(tmp_path)
    try:
        old = await joined(stage, "n1", **HARDWARE)
        plane = stage.plane
        plane.writer.feed(CoefficientsFitted("n1", MODEL, "fitted"))
        await old.close()

        def of_the_newer() -> list[Path]:
            files = (plane.directory.root / "times").glob("*.json")
            return [file for file in files if "evengine 2" in file.read_text()]

        newer = FakeEngine(plane, "n1", hardware="a cpu", engine="evengine 2")
        stage.engines["n1"] = newer
        await until(lambda: plane.state.nodes["n1"].boot_id == newer.boot_id, 5, "the new one")
        assert any("another engine" in what for what in told(plane))
        assert learned(plane) == MODEL
        slower = msgspec.structs.replace(TRUTH, c0_s=0.03, c1_s=9e-4, c2_s=6e-7, c3_s=6e-5)
        rng = random.Random(1)
        for index in range(1300):
            event = FromNode("n1", newer.boot_id, prefill(slower, rng, 0.05))
            plane.calibration.observe(index / 10, event, NOTHING)
        await until(lambda: learned(plane) != MODEL, 10, "a new fit")
        found = learned(plane)
        assert found is not None
        assert found.c1_s == pytest.approx(9e-4, rel=0.1)
        assert (found.d0_s, found.d2_s) == (MODEL.d0_s, MODEL.d2_s)
        (times,) = [one for one in plane.status().times if one.node == "n1"]
        assert (times.source, times.borrowed) == ("borrowed", {"decode": "n1"})
        assert not of_the_newer(), "half of it is another engine's"

        for index in range(1300, 2600):  # once it has decoded enough, the rest is its own too
            event = FromNode("n1", newer.boot_id, decode(slower, rng, 0.05))
            plane.calibration.observe(index / 10, event, NOTHING)
        await until(lambda: learned(plane) != found, 10, "the other half")
        (times,) = [one for one in plane.status().times if one.node == "n1"]
        assert (times.source, times.borrowed) == ("fitted", {})
        await until(of_the_newer, 5, "the whole to be kept")
    finally:
        await stage.close()
