"""The control plane over engines that are played by the test, on a real wire."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from evctl.control.frontdoor import OverloadedError
from evctl.control.plane import ControlPlane
from evctl.control.refusals import MAX_REFUSALS, Refusals
from evctl.core.errors import ConflictError
from evctl.core.events import (
    FirstToken,
    PrefillStarted,
    Recalled,
    RequestDone,
    TransferDone,
)
from evctl.core.kv import KvLayout
from evctl.wire.keys import generate_keypair, load_keypair, to_z85
from evctl.wire.messages import (
    CancelRequest,
    InventoryBlock,
    Peers,
    RecallRequest,
    Refused,
    StartRequest,
    Welcome,
)
from tests.control.fake_engine import FakeEngine, write_model
from tests.control.state import Output, collect, make_state, request_for, until

PROMPT = list(range(40))


class Stage:
    def __init__(self, root: Path, **options: object) -> None:
        model = write_model(root / "model")
        self.settings = make_state(root / "state", model_directory=model, **options)
        self.plane = ControlPlane(self.settings)
        self.plane.start()
        self.engines: dict[str, FakeEngine] = {}
        self.tasks: list[asyncio.Task[Output]] = []

    async def join(self, *names: str) -> None:
        for name in names:
            self.engines[name] = FakeEngine(self.plane, name)
        await until(lambda: self.alive() >= set(names), 5, "engines to join")

    def alive(self) -> set[str]:
        return {n.name for n in self.plane.state.nodes.values() if n.alive}

    def submit(self, request_id: str, **sampling: object) -> Output:
        output = Output()
        request = request_for(self.plane, request_id, PROMPT, **sampling)
        self.tasks.append(asyncio.create_task(collect(self.plane, request, output)))
        return output

    async def sent(self, request_id: str) -> tuple[FakeEngine, StartRequest]:
        """The engine that was told to start a request."""

        def find() -> list[tuple[FakeEngine, StartRequest]]:
            return [
                (engine, message)
                for engine in self.engines.values()
                for message in engine.of(StartRequest)
                if message.request_id == request_id
            ]

        await until(find, 5, f"{request_id} to be sent")
        return find()[-1]

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for engine in self.engines.values():
            await engine.close()
        await self.plane.close()


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(tmp_path)
    yield made
    await made.close()


async def test_tokens_of_both_nodes_come_out_in_order_without_repeats(stage: Stage) -> None:
    await stage.join("n1", "n2", "n3")
    output = stage.submit("r1")
    first, start = await stage.sent("r1")
    assert (start.prefill_node, start.decode_node) == ("n1", "n3")
    assert start.prompt == tuple(PROMPT)
    first.fact(PrefillStarted("r1", 0, 40))
    decode = stage.engines["n3"]
    decode.tokens("r1", 2, 12, 13)
    decode.tokens("r1", 1, 11)
    await until(lambda: stage.plane.streams.get("r1").waits_since_s, 5, "tokens to wait")  # type: ignore[union-attr]
    assert output.tokens == []
    first.tokens("r1", 0, 10)
    await until(lambda: output.tokens == [10, 11, 12, 13], 5, "tokens")
    decode.tokens("r1", 3, 13, 14, finish="length")
    await until(lambda: output.finish == "length", 5, "the end")
    assert output.tokens == [10, 11, 12, 13, 14]
    first.fact(FirstToken("r1", 40), TransferDone("r1", "n3", 1, 1, 0))
    decode.fact(RequestDone("r1", "length", 40, 0, 5))
    await until(lambda: not stage.plane.state.requests, 5, "the books to close")
    status = stage.plane.status()
    assert status.requests_done == 1
    assert status.ttft_p50_s is not None
    assert status.prefill.wait_p50_s is not None


async def test_a_node_queues_what_waits_there_now(stage: Stage) -> None:
    def queues() -> tuple[dict[str, int], int]:
        status = stage.plane.status()
        assert sum(n.queue for n in status.nodes) == status.prefill.waiting + status.decode.waiting
        return {node.name: node.queue for node in status.nodes}, status.decode.waiting

    await stage.join("n1", "n2", "n3")
    for number in range(4):
        stage.submit(f"r{number}")
        first, start = await stage.sent(f"r{number}")
        assert start.decode_node == "n3"
    assert queues() == ({"n1": 2, "n2": 2, "n3": 0}, 0), "n3 has nothing to do yet"
    first.fact(PrefillStarted("r3", 0, 40))
    await until(lambda: sum(queues()[0].values()) == 3, 5, "r3 to begin")
    first.fact(FirstToken("r3", 40))
    await until(lambda: queues() == ({"n1": 2, "n2": 1, "n3": 1}, 1), 5, "r3 to wait for n3")
    first.fact(TransferDone("r3", "n3", 1, 1, 0))
    await until(lambda: queues() == ({"n1": 2, "n2": 1, "n3": 0}, 0), 5, "r3 to decode")


async def test_tokens_of_other_nodes_and_of_earlier_lives_are_ignored(stage: Stage) -> None:
    await stage.join("n1", "n2", "n3")
    output = stage.submit("r1")
    await stage.sent("r1")
    stage.engines["n2"].tokens("r1", 0, 99)
    for index in range(3):
        stage.engines["n2"].tokens("orphan", index, 5)
    await until(lambda: stage.engines["n2"].of(CancelRequest), 5, "the orphan to be cancelled")
    stage.engines["n1"].tokens("r1", 0, 10)
    await until(lambda: output.tokens == [10], 5, "the right token")
    assert [c.request_id for c in stage.engines["n2"].of(CancelRequest)] == ["orphan"]


async def test_a_reader_that_leaves_cancels_everywhere(stage: Stage) -> None:
    await stage.join("n1", "n2", "n3")
    stage.submit("r1")
    await stage.sent("r1")
    stage.tasks[0].cancel()
    for name in ("n1", "n3"):
        engine = stage.engines[name]
        await until(lambda: engine.of(CancelRequest), 5, f"{name} to hear")  # noqa: B023
    assert not stage.plane.state.requests
    assert not len(stage.plane.streams)


async def test_a_changed_split_recalls_and_sends_again(stage: Stage) -> None:
    await stage.join("n1", "n2", "n3")
    outputs = [stage.submit(f"r{i}") for i in range(2)]
    engine, first = await stage.sent("r1")
    assert engine.name == "n2"
    assert 0 <= first.waited_s < 1
    arrived_s = stage.plane.state.requests["r1"].arrived_s
    busy, _ = await stage.sent("r0")
    busy.fact(PrefillStarted("r0", 0, 40))
    await until(lambda: stage.plane.status().prefill.running == 1, 5, "r0 to begin")
    change = stage.plane.overrides.set_split("1P2D", by="me")
    assert [move.node for move in change.moves] == ["n2"]
    await until(lambda: engine.of(RecallRequest), 5, "the recall")
    assert stage.plane.status().split == "2P1D"
    assert stage.plane.status().target_split == "1P2D"
    await asyncio.sleep(0.02)
    engine.fact(Recalled("r1"))
    await until(lambda: "r1" in busy.started(), 5, "r1 to go to n1")
    (again,) = [sent for sent in busy.of(StartRequest) if sent.request_id == "r1"]
    # An engine counts its age from when it came, as the router does: not from this sending.
    latest_s = stage.plane.clock() - arrived_s
    assert first.waited_s < again.waited_s <= latest_s + 0.01
    assert again.waited_s > 0.01
    busy.tokens("r1", 0, 7, finish="length")
    await until(lambda: outputs[1].finish == "length", 5, "r1")
    assert stage.plane.status().split == "1P2D"


async def test_a_refused_request_is_sent_elsewhere(stage: Stage) -> None:
    await stage.join("n1", "n2", "n3")
    output = stage.submit("r1")
    first, _ = await stage.sent("r1")
    first.send(Refused("EV-2307", "1024 requests are queued here", "r1"))
    await until(lambda: "r1" in stage.engines["n2"].started(), 5, "another node")
    stage.engines["n2"].send(Refused("EV-2306", "it never fits", "r1"))
    await until(lambda: output.finish == "error", 5, "the end")
    assert output.last is not None
    assert "never fits" in output.last.error


async def test_a_full_queue_is_said_with_a_time(tmp_path: Path) -> None:
    stage = Stage(tmp_path, max_queued=1)
    try:
        await stage.join("n1", "n2", "n3")
        stage.submit("r1")
        await stage.sent("r1")
        with pytest.raises(OverloadedError) as caught:
            await collect(stage.plane, request_for(stage.plane, "r2", PROMPT), Output())
        assert caught.value.retry_after_s >= 1
        assert stage.plane.status().requests_rejected == 1
    finally:
        await stage.close()


async def test_without_engines_requests_are_turned_away(stage: Stage) -> None:
    assert stage.plane.model() is None
    assert stage.plane.ready() == "no engine is connected"
    await stage.join("n1")
    assert stage.plane.ready() == ""
    card = stage.plane.model()
    assert card is not None
    assert (card.context_tokens, card.vocab_size, card.eos_ids) == (4096, 320, (256,))
    stage.engines["n2"] = FakeEngine(stage.plane, "n2", l1_blocks=100)
    await until(lambda: stage.alive() == {"n1", "n2"}, 5, "a smaller node")
    smaller = stage.plane.model()
    assert smaller is not None
    assert smaller.context_tokens == 100 * 16


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"cluster": "other"}, "EV-1331"),
        ({"model": "gpt"}, "EV-1334"),
        ({"weights_hash": "v" * 64}, "EV-1335"),
        ({"layout": KvLayout(4, 2, 128, "float32", 32)}, "EV-1336"),
        ({"layout": KvLayout(5, 2, 128, "float32", 16)}, "EV-1336"),
        ({"numerics": "fast/2"}, "EV-1337"),
    ],
)
async def test_an_engine_that_does_not_belong_is_told_why(
    stage: Stage, change: dict[str, object], code: str
) -> None:
    await stage.join("n1")
    stage.engines["n2"] = other = FakeEngine(stage.plane, "n2", **change)
    await until(lambda: other.of(Refused), 5, "the refusal")
    assert [r.code for r in other.of(Refused)] == [code]
    assert not other.of(Welcome)
    assert stage.alive() == {"n1"}
    (refusal,) = stage.plane.status().refusals
    assert (refusal.node, refusal.code) == ("n2", code)
    (event,) = (e for e in stage.plane.events.since(0) if e.level == "warn")
    assert (event.node, event.what) == ("n2", f"refused: {code}: {refusal.why}")
    await other.close()
    await stage.join("n2")
    assert stage.plane.status().refusals == ()


async def test_a_node_joins_with_its_own_key_only(stage: Stage) -> None:
    keys = load_keypair(stage.settings.directory / "keys" / "n1.key")
    stage.engines["n2"] = other = FakeEngine(stage.plane, "n2", keypair=keys)
    await until(lambda: other.of(Refused), 5, "the refusal")
    assert other.of(Refused)[0].code == "EV-1332"
    stage.engines["n3"] = stranger = FakeEngine(stage.plane, "n3", keypair=generate_keypair())
    await until(lambda: stage.plane.hub.wire_counters().get("denied_key"), 5, "the denial")
    assert not stranger.received
    liar, unknown = stage.plane.status().refusals
    assert (liar.node, liar.code) == ("n1", "EV-1332"), "it is whom its key says"
    assert (unknown.node, unknown.code) == ("", "EV-3014")
    assert unknown.public_key == to_z85(stranger.public_key)


def test_refusals_are_bounded_and_strangers_go_first() -> None:
    refusals = Refusals()
    assert refusals.add(b"n" * 32, "n1", "EV-1334", "another model")
    assert refusals.add(b"n" * 32, "n1", "EV-1334", "another model") is None
    told = [
        refusals.add(number.to_bytes(32), "", "EV-3014", f"a key from {number}")
        for number in range(5 * MAX_REFUSALS)
    ]
    assert sum(one is not None for one in told) == 1, "strangers do not fill the event log"
    listed = refusals.listed()
    assert len(listed) == MAX_REFUSALS
    assert listed[0].node == "n1"
    assert [one.number for one in listed] == sorted(one.number for one in listed)


def _peers(engine: FakeEngine) -> set[str]:
    return {peer.node for peer in engine.of(Peers)[-1].peers}


async def test_peers_hear_of_each_other_and_of_losses(tmp_path: Path) -> None:
    stage = Stage(tmp_path, node_late_after_s=0.3, node_lost_after_s=0.8)
    try:
        await stage.join("n1", "n2", "n3")
        output = stage.submit("r1")
        engine, _ = await stage.sent("r1")
        engine.fact(PrefillStarted("r1", 0, 40))
        engine.mute = True
        await until(lambda: output.finish == "error", 5, "the loss")
        assert output.last is not None
        assert "n1 was lost: it was silent" in output.last.error
        other = stage.engines["n2"]
        await until(lambda: _peers(other) == {"n2", "n3"}, 5, "its peers to hear")
        assert stage.plane.status().nodes[0].state == "lost"
        engine.mute = False
        await until(lambda: stage.alive() == {"n1", "n2", "n3"}, 5, "n1 to come back")
        assert engine.of(CancelRequest), "what it may still run is stopped"
    finally:
        await stage.close()


async def test_a_pause_of_the_control_plane_is_not_held_against_engines(tmp_path: Path) -> None:
    stage = Stage(tmp_path, node_late_after_s=0.5, node_lost_after_s=1.5)
    try:
        await stage.join("n1", "n2", "n3")
        output = stage.submit("r1")
        engine, _ = await stage.sent("r1")
        engine.fact(PrefillStarted("r1", 0, 40))
        await asyncio.sleep(0.6)
        time.sleep(3.0)  # the loop stands still, and the engines in it
        for other in stage.engines.values():
            other.mute = True  # what they said meanwhile is late
        await asyncio.sleep(0.6)
        for other in stage.engines.values():
            other.mute = False
        await asyncio.sleep(0.6)
        engine.tokens("r1", 0, 7, finish="length")
        await until(lambda: output.finish == "length", 5, "the request to go on")
        assert not [e.what for e in stage.plane.events.since(0) if e.what.startswith("lost")]
        engine.mute = True
        await until(lambda: "n1" not in stage.alive(), 5, "real silence to be noticed")
    finally:
        await stage.close()


async def test_without_descriptors_the_watch_goes_on_and_no_key_is_forgotten(stage: Stage) -> None:
    await stage.join("n1", "n2")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        await until(lambda: stage.plane.hub.counters["keys_unreadable"] >= 2, 5, "two rounds")
        output = stage.submit("r1")
        engine, _ = await stage.sent("r1")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    engine.tokens("r1", 0, 7, finish="length")
    await until(lambda: output.finish == "length", 5, "the request")
    assert stage.alive() == {"n1", "n2"}
    assert not stage.plane.stopping.is_set()
    await stage.join("n3")


async def test_a_dead_process_is_noticed_at_once_even_if_another_has_its_place(
    stage: Stage,
) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        path = stage.settings.directory / "nodes" / "n1.json"
        path.write_text(_record_of(process.pid))
        await stage.join("n1", "n2", "n3")
        stage.engines["n1"].mute = True
        await asyncio.sleep(1.2)
        assert "n1" in stage.alive(), "it is silent, but its process lives"
    finally:
        process.kill()
        process.communicate()
    path.write_text(_record_of(os.getpid()))  # as `evctl up` does, which was faster than we
    await until(lambda: "n1" not in stage.alive(), 3, "the loss")
    assert f"process {process.pid} ended" in stage.plane.events.since(0)[-1].what


async def test_a_record_of_an_earlier_process_is_not_held_against_an_engine(
    stage: Stage,
) -> None:
    record = json.loads(_record_of(os.getpid()))
    stale = {**record, "start_time": record["start_time"] - 100}
    (stage.settings.directory / "nodes" / "n1.json").write_text(json.dumps(stale))
    await stage.join("n1")
    stage.engines["n1"].mute = True
    await asyncio.sleep(1.2)
    assert stage.alive() == {"n1"}


def _record_of(pid: int) -> str:
    return json.dumps({"pid": pid, "start_time": psutil.Process(pid).create_time()})


async def test_what_a_joining_engine_holds_is_asked_for(stage: Stage) -> None:
    await stage.join("n1", "n2")
    request = request_for(stage.plane, "r1", PROMPT)
    keys = [request.block_keys[:16], request.block_keys[16:32]]
    stage.engines["n3"] = FakeEngine(stage.plane, "n3")
    parents = [request.root_key, keys[0]]
    stage.engines["n3"].blocks = tuple(
        InventoryBlock(key, 1, 0, 0, parent) for key, parent in zip(keys, parents, strict=True)
    )
    directory = stage.plane.state.directory
    await until(
        lambda: directory.match(request.block_keys).coverage.get("n3") == 2, 5, "the inventory"
    )


async def test_one_control_plane_serves_a_cluster(stage: Stage) -> None:
    with pytest.raises(ConflictError) as caught:
        ControlPlane(stage.settings)
    assert caught.value.code == "EV-1311"


async def test_a_restart_counts_epochs_and_keeps_the_split(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.plane.publish("http://127.0.0.1:1")
    stage.plane.overrides.set_split("1P2D", by="me", reason="test")
    endpoint, generation = stage.plane.endpoint, stage.plane.state.generation
    await stage.close()
    again = ControlPlane(stage.settings)
    again.start()
    try:
        assert again.epoch == 2
        assert again.endpoint == endpoint
        status = again.status()
        assert (status.split, status.generation) == ("1P2D", generation)
        assert (status.mode, status.held_by, status.hold_reason) == ("hold", "me", "test")
    finally:
        await again.close()
