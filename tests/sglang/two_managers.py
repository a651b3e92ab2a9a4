"""Two transfer managers, one a phase, alive in one process over one Mooncake engine and one set of
KV buffers: does it hold? `.venv-sglang/bin/python tests/sglang/two_managers.py [CASE ...]` (root).

    as-is      SGLang's managers unchanged: what the second registration returns, what then works
    decode-first  the same in the other order
    shared     registered once for both: rooms both ways at the same time, every byte checked
    killed     shared, and a peer is killed in the middle; then a new peer takes its place
    teardown   registered by whoever comes first, and working; then one manager's teardown:
               what becomes of the other's transfers

Moves itself into a network namespace of its own: Mooncake listens on all interfaces and asks
nobody who they are. Prints one JSON line a case; ends with 1 if `shared` or `killed` lost a byte.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
STARTED: list[Peer] = []
CASES = ("as-is", "decode-first", "shared", "killed", "teardown")
ROOMS = int(os.environ.get("EVCTL_ROOMS", "400"))
ROUNDS = int(os.environ.get("EVCTL_ROUNDS", "5"))
ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "SGLANG_HOST_IP": "127.0.0.1",
    "MC_FORCE_TCP": "1",
    "MC_TRANSFER_TIMEOUT": "5",
    "OMP_NUM_THREADS": "1",
    # The peer that is killed is found out by heartbeats: 2 s apart is the least SGLang takes.
    "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "2",
    "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "12",
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "12",
}


class Peer:
    """A manager_node process. Its stderr goes to a file beside the model."""

    def __init__(self, folder: Path, case: str, port: int) -> None:
        self.port = port
        self._log = (folder / f"node-{port}.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, HERE / "manager_node.py", folder / "model", case, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **ENVIRONMENT},
        )
        self.about: dict[str, Any] = {}

    def ready(self) -> Peer:
        self.about = self.answer()
        return self

    def ask(self, order: str, **arguments: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"order": order, **arguments}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the node at port {self.port} has ended, see {self._log.name}")
        return json.loads(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()


def both_ways(a: Peer, b: Peer, first_room: int, rooms: int, limit_s: float = 60) -> list[dict]:
    """`rooms` rooms from a to b and as many from b to a, at the same time."""
    there = list(range(first_room, first_room + rooms))
    back = list(range(first_room + rooms, first_room + 2 * rooms))
    a.ask("run", send=there, receive=back, peer_port=b.port, limit_s=limit_s)
    b.ask("run", send=back, receive=there, peer_port=a.port, limit_s=limit_s)
    return [a.answer(), b.answer()]


def total(answers: list[dict]) -> dict[str, Any]:
    outcomes: dict[str, int] = {}
    for answer in answers:
        for key, count in answer["outcomes"].items():
            outcomes[key] = outcomes.get(key, 0) + count
    return {
        "outcomes": outcomes,
        "mebibytes": round(sum(answer["bytes_in"] for answer in answers) / 2**20, 1),
        "seconds": round(sum(answer["seconds"] for answer in answers) / 2, 2),
        "free_slots_touched": sum(answer["free_slots_touched"] for answer in answers),
    }


def start(folder: Path, case: str, *ports: int) -> list[Peer]:
    peers = [Peer(folder, case, port) for port in ports]
    STARTED.extend(peers)
    return [peer.ready() for peer in peers]


def run_as_is(folder: Path, case: str = "as-is") -> dict[str, Any]:
    a, b = start(folder, case, 7001, 7002)
    return {"a": a.about, **total(both_ways(a, b, 1, 20, limit_s=20))}


def run_shared(folder: Path) -> dict[str, Any]:
    a, b = start(folder, "shared", 7003, 7004)
    answers: list[dict] = []
    for index in range(ROUNDS):
        answers += both_ways(a, b, 1 + 2 * ROOMS * index, ROOMS)
    result = total(answers)
    result["ok"] = result["free_slots_touched"] == 0 and result["outcomes"] == {
        "send: Success": 2 * ROOMS * ROUNDS,
        "receive: right": 2 * ROOMS * ROUNDS,
    }
    return {"a": a.about, **result}


def run_killed(folder: Path) -> dict[str, Any]:
    """A talks to B, B is killed while rooms go both ways; A then talks to C as if nothing were."""
    a, b, c = start(folder, "shared", 7005, 7006, 7007)
    before = total(both_ways(a, b, 1, 50))
    rooms = 4000
    there, back = list(range(1000, 1000 + rooms)), list(range(5000, 5000 + rooms))
    a.ask("run", send=there[:600], receive=back[:600], peer_port=b.port, limit_s=30)
    b.ask("run", send=back, receive=there, peer_port=a.port, limit_s=30)
    time.sleep(2.5)
    b.kill()
    during = total([a.answer()])
    a.ask("lift_quarantine")
    lifted = a.answer()["slots"]
    after = total(both_ways(a, c, 20000, 100))
    right = {"send: Success": 200, "receive: right": 200}
    ok = after["outcomes"] == right and "receive: wrong bytes" not in during["outcomes"]
    ok = ok and during["free_slots_touched"] == after["free_slots_touched"] == 0
    return {"before": before, "during": during, "lifted": lifted, "after": after, "ok": ok}


def run_teardown(folder: Path) -> dict[str, Any]:
    a, b = start(folder, "late", 7008, 7009)
    before = total(both_ways(a, b, 1, 20, limit_s=20))
    a.ask("teardown", phase="prefill")
    about = a.answer()
    # Only b to a: a's decode manager is the one that is left.
    rooms = list(range(1000, 1020))
    a.ask("run", send=[], receive=rooms, peer_port=b.port, limit_s=20)
    b.ask("run", send=rooms, receive=[], peer_port=a.port, limit_s=20)
    return {"before": before, "a": about, "after": total([a.answer(), b.answer()])}


RUN = {
    "as-is": run_as_is,
    "decode-first": partial(run_as_is, case="decode-first"),
    "shared": run_shared,
    "killed": run_killed,
    "teardown": run_teardown,
}


def main() -> int:
    if sys.argv[1:2] != ["inside"]:
        enter = 'ip link set lo up && exec "$@"'
        command = ["unshare", "-n", "sh", "-c", enter, "sh", sys.executable, __file__, "inside"]
        os.execvp("unshare", command + (sys.argv[1:] or list(CASES)))
    failed = 0
    folder = Path(tempfile.mkdtemp(prefix="two-managers-"))
    subprocess.run(
        [sys.executable, HERE / "tiny_model.py", folder / "model"],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    print(f"logs in {folder}", file=sys.stderr)
    for case in sys.argv[2:]:
        try:
            result = RUN[case](folder)
        finally:
            for peer in STARTED:
                peer.kill()
            STARTED.clear()
        failed += result.get("ok") is False
        print(json.dumps({"case": case, **result}), flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
