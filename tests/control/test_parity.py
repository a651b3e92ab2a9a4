"""A live run with everything in it that moves nodes, run again from its events alone."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from evctl.control.journal import encode_effects, segments
from evctl.control.recollect import recollect
from evctl.control.replay import JournalReader, main, replay
from evctl.core.effects import AnyEffect, SplitWritten, TransitionEnded
from evctl.core.events import Override
from evctl.policy.state import ClusterState, check, step
from tests.control.real_engines import RealCluster
from tests.control.state import until
from tests.control.test_real_engines import LOSS_SHOWS_S, prompts

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


@pytest.fixture
def model() -> Path:
    from evengine.models.store import ensure_model

    return ensure_model("random-4l256")


async def live_through_changes(cluster: RealCluster) -> None:
    """Changes by hand under load, a hold that ends, a node killed while it changes."""
    plane = cluster.plane
    outputs = [cluster.submit(prompt, max_tokens=16) for prompt in prompts(24, seed=5)]
    await until(lambda: plane.status().decode.running >= 1, 60, "decodes")
    for split, for_s in (("1P2D", 60.0), ("2P1D", None), ("1P2D", 0.5)):
        plane.overrides.set_split(split, by="ann", reason="test", for_s=for_s)
        await until(lambda split=split: plane.status().split == split, 60, "it to settle")
    await until(lambda: plane.state.mode == "auto", 10, "the hold to end")
    await cluster.finish(outputs)

    outputs = [cluster.submit(prompt, max_tokens=150) for prompt in prompts(12, seed=6)]
    await until(lambda: plane.status().decode.running >= 2, 60, "decodes")
    change = plane.overrides.set_split("2P1D", by="bob")
    (move,) = change.moves
    assert plane.state.transitions.open is not None
    os.kill(cluster.engines.processes[move.node].pid, signal.SIGKILL)
    await until(lambda: not plane.state.nodes[move.node].alive, LOSS_SHOWS_S, "the loss")
    assert plane.state.transitions.open is None
    await until(lambda: all(o.finish for o in outputs), 90, "the others to finish")
    cluster.engines.start(move.node, plane.endpoint)
    await cluster.joined(move.node)
    plane.overrides.set_mode("auto", by="bob")
    await cluster.finish([cluster.submit(prompt, max_tokens=4) for prompt in prompts(4, seed=7)])


async def test_the_events_of_a_live_run_give_the_same_effects_again(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "state"
    cluster = RealCluster(root, model, cooldown_s=0.0)
    try:
        await cluster.start()
        await live_through_changes(cluster)
        remembered = cluster.plane.records.stories.told("r3", 0.0, "memory")
    finally:
        await cluster.close()

    report = replay(root / "journal")
    assert report.equal, report
    assert (report.tail, report.steps) == ("", cluster.plane.writer.steps)
    assert main([str(root / "journal")]) == 0
    assert f"{report.steps} steps" in capsys.readouterr().out

    reader = JournalReader(segments(root / "journal")[1])
    recorded = [(e.now_s, e.event, bytes(e.effects)) for e in reader.entries()]
    stripped = [(now_s, event) for now_s, event, _ in recorded]
    state = ClusterState(reader.header.config)
    again = [encode_effects(step(state, event, now_s).effects) for now_s, event in stripped]
    assert again == [effects for _, _, effects in recorded]
    assert check(state) == []
    assert sum(isinstance(event, Override) for _, event in stripped) == 5

    decode = msgspec.msgpack.Decoder(tuple[AnyEffect, ...]).decode
    effects = [effect for one in again for effect in decode(one)]
    writes = [one.write for one in effects if isinstance(one, SplitWritten)]
    assert [write.by for write in writes] == ["ann", "ann", "ann", "evctl", "bob", "bob"]
    ended = [one.transition for one in effects if isinstance(one, TransitionEnded)]
    assert Counter(one.outcome for one in ended) == {"settled": 3, "lost": 1}

    found = recollect(root / "journal", "r3").found
    assert found is not None
    assert remembered is not None
    assert (found.decisions, found.outcome) == (remembered.decisions, remembered.outcome)
