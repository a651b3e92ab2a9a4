"""Real engine processes for a control plane that runs in the test."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil

from evctl.control.plane import ControlPlane
from evctl.core.branches import BranchSignal
from evctl.core.events import Event, FromNode, TransferDone
from evctl.policy.state import StepResult
from evctl.wire.keys import load_keypair, to_z85
from evctl.wire.messages import Inspect, Inspection
from tests.control.state import Output, collect, make_state, request_for, until

START_TIMEOUT_S = 90.0


class Engines:
    """Processes, as `evctl up` starts them: detached, recorded in nodes/NODE.json."""

    def __init__(
        self, root: Path, model: Path, l1_blocks: int, *, shortest_first: bool = False
    ) -> None:
        self.root = root
        self._shortest_first = shortest_first
        self._model = model
        self._l1_blocks = l1_blocks
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, endpoint: str) -> None:
        if name in self.processes:
            self.processes[name].wait(10)
        config = {
            "cluster": "test",
            "node": name,
            "control_endpoint": endpoint,
            "control_public_key": to_z85(load_keypair(self.root / "control.key").public),
            "keypair": str(self.root / "keys" / f"{name}.key"),
            "model": str(self._model),
            "l1_blocks": self._l1_blocks,
            "limits": {
                "chunk_tokens": 64,
                "max_running": 16,
                "shortest_first": self._shortest_first,
            },
        }
        path = self.root / "nodes" / f"{name}.config.json"
        path.write_bytes(msgspec.json.encode(config))
        with (self.root / "logs" / f"{name}.jsonl").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "evengine", "--config", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        self.processes[name] = process
        started_s = psutil.Process(process.pid).create_time()
        record = {"pid": process.pid, "start_time": started_s, "config": str(path)}
        (self.root / "nodes" / f"{name}.json").write_bytes(msgspec.json.encode(record))

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


class RealCluster:
    """Control plane in this process, engines in theirs."""

    def __init__(
        self, root: Path, model: Path, *, l1_blocks: int = 256, **options: object
    ) -> None:
        self.settings = make_state(root, model_directory=model, **options)
        shortest_first = self.settings.shortest_first
        self.engines = Engines(root, model, l1_blocks, shortest_first=shortest_first)
        self.plane = ControlPlane(self.settings)
        self.plane.start()
        self.tasks: list[asyncio.Task[Output]] = []
        self._names = itertools.count(1)

    async def start(self) -> None:
        for name in self.settings.nodes:
            self.engines.start(name, self.plane.endpoint)
        await self.joined(*self.settings.nodes)
        await self.settle()

    async def settle(self) -> None:
        """Until engines reach each other: before that they decode where they prefilled."""
        moved: set[str] = set()

        def note(_: float, event: Event, __: StepResult) -> None:
            if isinstance(event, FromNode) and isinstance(event.fact, TransferDone):
                moved.add(event.node)

        self.plane.writer.observers.append(note)
        wanted = {n.name for n in self.plane.state.nodes.values() if n.role == "P"}
        for attempt in range(100):
            if moved >= wanted:
                break
            await self.finish([self.submit([attempt, index], max_tokens=3) for index in range(2)])
        self.plane.writer.observers.remove(note)
        assert moved >= wanted

    async def joined(self, *names: str) -> None:
        nodes = self.plane.state.nodes
        await until(
            lambda: all(nodes[n].alive for n in names), START_TIMEOUT_S, f"{names} to join"
        )

    def submit(
        self, prompt: list[int], branch: BranchSignal | None = None, **sampling: object
    ) -> Output:
        output = Output()
        request = request_for(self.plane, f"r{next(self._names)}", prompt, branch, **sampling)
        self.tasks.append(asyncio.create_task(collect(self.plane, request, output)))
        return output

    async def finish(self, outputs: list[Output], timeout_s: float = 90.0) -> list[list[int]]:
        await until(lambda: all(output.finish for output in outputs), timeout_s, "requests")
        assert {output.finish for output in outputs} == {"length"}, [o.last for o in outputs]
        return [output.tokens for output in outputs]

    async def inspect(self, name: str) -> Inspection:
        found: list[Inspection] = []
        self.plane.hub.on_inspection = lambda _node, message: found.append(message)
        assert self.plane.hub.send(name, Inspect(1))
        await until(lambda: found, 20, "an inspection")
        return found[0]

    async def quiet(self, name: str) -> Inspection:
        """Wait until nothing is left of any request on a node."""
        for _ in range(200):
            inspection = await self.inspect(name)
            load = inspection.load
            busy = load.waiting_prefill + load.running_prefill + load.waiting_decode
            if not busy + load.running_decode + load.l1_used_blocks:
                return inspection
            await asyncio.sleep(0.05)
        raise TimeoutError(f"{name} does not come to rest: {load}")

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.plane.close()
        self.engines.stop()
