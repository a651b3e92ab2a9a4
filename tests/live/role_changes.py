"""Changes of role under replay lose no KV and no request, and change no answer:
`python -m tests.live.role_changes [--changes 20] [--requests 240] [--verify 4] [--automatic]`.

The same recorded conversations are replayed three times with one seed: on a cluster whose split
never changes, on one whose split changes all the time in both directions, and (every Nth request
of the latter) on engines that reuse nothing. A request that goes on from an earlier one of its
branch must find as many cached tokens with the changes as without. How long the changes took is
told as a distribution, from the records that the control plane keeps of them.

--automatic: every other change is the planner's own, in windows of some seconds and on paced
engines: each time that it has settled, somebody sets the other split and lets the planner decide,
which is waited for to take that back. The conversations are made up then, all of one kind (many
new tokens, short answers): recorded ones differ too much for half a minute to make one sure.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from evctl.bench.live.closed import PREFILL_HEAVY, closed_trace
from evctl.bench.live.planned import PACE
from evctl.policy.planning import BY as PLANNER
from evctl.trace.files import write
from tests.live.shell import Shell

TEXT = """\
name: {name}
nodes: 3
split: 2P1D
warm_up_s: {warm_up_s}
model: {model}
block_tokens: {block_tokens}
l1_tokens: 65536
l2_tokens: {l2_tokens}
prefix_cache: {cache}
allow_replay: true
gateway: {{port: 0}}
"""
AUTOMATIC = """\
planner: {{window_s: 18, slices: 6, cooldown_s: 1, least_requests: 3}}
pace: {pace}
"""
SAMPLE = "sample"
CONVERSATIONS = 2000
WARM_UP_S = 15.0
PATIENCE_S = 60
"""For the planner to move; then the next change is somebody's again."""
SPLITS = ("1P2D", "2P1D")
BLOCK_TOKENS = 4
FLIP_GOAL_S = 0.05


def cluster(
    folder: Path,
    name: str,
    model: str,
    *,
    reuse: bool = True,
    more: str = "",
    warm_up_s: float = 0.0,
) -> Shell:
    """A cluster of that name with directories of its own, up. more: of its file."""
    home = folder / name
    home.mkdir(parents=True)
    text = TEXT.format(
        name=name,
        model=model,
        block_tokens=BLOCK_TOKENS,
        cache="true" if reuse else "false",
        l2_tokens=131072 if reuse else 0,
        warm_up_s=warm_up_s,
    )
    shell = Shell(home, text + more, name)
    shell.json(f"up {name}.yaml")
    return shell


class Run:
    """One replay: its report, and what was recorded of each request."""

    def __init__(self, report: dict[str, Any], records: dict[str, dict[str, Any]]) -> None:
        self.report = report
        self.records = records


def replay(
    shell: Shell, options: argparse.Namespace, verify: str = "", meanwhile: object = None
) -> Run:
    """Replay the sample; `meanwhile(process)` runs beside it."""
    report, record = shell.folder / "report.json", shell.folder / "record.jsonl"
    command = [
        *("trace", "replay", options.trace, "-c", shell.name, "--agents", str(options.agents)),
        *(() if options.trace == SAMPLE else ("--scale", "1")),
        *("--max-requests", str(options.requests), "--seed", str(options.seed)),
        *("--gap-cap-s", "0.3", "--report", str(report), "--record", str(record)),
    ]
    if verify:
        command += ["--verify", str(options.verify), "--verify-target", verify]
    process = subprocess.Popen(
        [sys.executable, "-m", "evctl.cli", *command],
        cwd=shell.folder,
        env=shell.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    if callable(meanwhile):
        meanwhile(process)
    code = process.wait(1800)
    if code:
        raise SystemExit(f"replay on {shell.name} ended with {code}")
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    return Run(json.loads(report.read_text())["runs"][0], {line["id"]: line for line in lines})


def changing(shell: Shell, changes: list[str], wanted: int) -> Callable[[Any], None]:
    """Changes the split again and again while a replay runs, evenly over its first requests."""

    def change(process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None and len(changes) < wanted:
            now = shell.json("status")
            if now["prefill"]["running"] + now["decode"]["running"]:
                split = SPLITS[len(changes) % 2]
                shell(f"split set {split} -c {shell.name} -y --force --reason test")
                changes.append(split)
                shell.status_until(
                    lambda s: s["split"] == changes[-1] or process.poll() is not None,
                    "settled split",
                    120,
                )
            time.sleep(0.05)

    return change


def alternating(shell: Shell, changes: list[str], wanted: int) -> Callable[[Any], None]:
    """Once the nodes' times are known, somebody changes the split, the planner changes it back,
    and so on."""

    def change(process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None and not all(
            times["coefficients"] for times in shell.json("status")["times"]
        ):
            time.sleep(1.0)
        while process.poll() is None and len(made := history(shell)) < wanted:
            now = shell.json("status")
            if now["transition"] or not now["prefill"]["running"] + now["decode"]["running"]:
                time.sleep(0.2)
                continue
            other = next(split for split in SPLITS if split != now["target_split"])
            shell(f"split set {other} -c {shell.name} -y --force --reason test")
            shell(f"split auto -c {shell.name} -y --reason test")
            changes.append(other)
            deadline_s = time.monotonic() + PATIENCE_S
            while process.poll() is None and time.monotonic() < deadline_s:
                if len(history(shell)) > len(made) + 1:
                    break  # the planner's
                time.sleep(0.5)

    return change


def history(shell: Shell) -> list[dict[str, Any]]:
    """What changed the split so far, oldest first."""
    entries = shell.json(f"split history -c {shell.name}")["changes"]
    return [entry for entry in entries if entry["transition"]]


def compare(still: Run, moving: Run) -> list[str]:
    """Requests that go on from an earlier one of their branch and found fewer cached tokens."""
    fewer = []
    for request_id, with_changes in moving.records.items():
        without = still.records.get(request_id)
        if without is None or with_changes["index"] == 0:
            continue
        if (with_changes["cached_tokens"] or 0) < (without["cached_tokens"] or 0):
            fewer.append(
                f"{request_id}: {with_changes['cached_tokens']} of "
                f"{without['cached_tokens']} without, prompt {with_changes['prompt_tokens']}"
            )
    return fewer


class Figure(NamedTuple):
    """A row of a Measurement; ok: against its goal, None where it has none."""

    name: str
    value: float | None
    unit: str
    ok: bool | None = None


def durations(changes: list[dict[str, Any]]) -> list[Figure]:
    """Of every node's move that settled, from the records of the changes; a move with nothing
    running at its cordon must flip in FLIP_GOAL_S."""
    ended = [change["transition"] for change in changes if change["transition"]]
    moves = [m for one in ended for m in one["moves"] if m["outcome"] == "settled"]
    quiet = [move["flip_s"] for move in moves if not move["running"]]
    found = [
        Figure("changes", len(ended), "changes"),
        Figure("of them the planner's", sum(c["by"] == PLANNER for c in changes), "changes"),
        Figure("moves settled", len(moves), "nodes"),
        Figure("moves with nothing running", len(quiet), "nodes"),
        Figure("requests finished in place", sum(m["finished"] for m in moves), "requests"),
        Figure("requests requeued", sum(m["requeued"] for m in moves), "requests"),
    ]
    for name, spans in (
        ("cordon to flip", [move["flip_s"] for move in moves]),
        ("cordon to flip, nothing running", quiet),
        ("whole, what runs included", [move["whole_s"] for move in moves]),
    ):
        found += [
            Figure(f"{name}, {what}", share_of(spans, share), "s")
            for what, share in (("median", 0.5), ("P95", 0.95), ("most", 1.0))
        ]
    most = share_of(quiet, 1.0)
    goal = None if most is None else most <= FLIP_GOAL_S
    found.append(Figure("cordon to flip under 50 ms, nothing running", most, "s", goal))
    return found


def share_of(spans: list[float], share: float) -> float | None:
    """The smallest span that `share` of them do not exceed; None without any."""
    ordered = sorted(spans)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def compared(
    still: Run, moving: Run, options: argparse.Namespace, changes: list[str]
) -> list[Figure]:
    """With the changes beside without; what must be equal has a goal."""
    both = sum(r["index"] > 0 and i in still.records for i, r in moving.records.items())
    fewer = compare(still, moving)
    by_hand = options.changes // 2 if options.automatic else options.changes
    for line in fewer[:20]:
        print(f"  {line}", file=sys.stderr)
    extras = moving.report["extras"]
    about = ("verif", "unverif", "wrong", "changed")
    told = {k: v for k, v in extras.items() if k.startswith(about) and isinstance(v, int)}
    wrong = sum(v for k, v in told.items() if not k.startswith("verif"))
    return [
        Figure("changes by hand", len(changes), "changes", len(changes) >= by_hand),
        Figure("requests", moving.report["requests"], "requests"),
        Figure("failed", moving.report["failed"], "requests", not moving.report["failed"]),
        Figure("failed without changes", still.report["failed"], "requests"),
        Figure("hit rate", moving.report["kv_hit_rate"], ""),
        Figure("hit rate without changes", still.report["kv_hit_rate"], ""),
        *(Figure(key, value, "requests") for key, value in told.items()),
        Figure("wrong answers", wrong, "requests", not wrong),
        Figure("requests that go on from an earlier one", both, "requests"),
        Figure("of them with fewer cached tokens", len(fewer), "requests", not fewer),
    ]


def print_figures(figures: list[Figure], *, as_json: bool) -> None:
    if as_json:
        rows = [
            {"name": f.name, "value": f.value, "unit": f.unit, "peer": None, "ratio": None}
            | ({} if f.ok is None else {"ok": f.ok})
            for f in figures
        ]
        print(json.dumps({"kind": "Measurement", "rows": rows}, indent=2))
        return
    for f in figures:
        value = "-" if f.value is None else f"{f.value:.6g}"
        verdict = "" if f.ok is None else ("  ok" if f.ok else "  NOT MET")
        print(f"{f.name:<48} {value:>12} {f.unit}{verdict}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--requests", type=int, default=240)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verify", type=int, default=4, help="every Nth request")
    parser.add_argument("--model", default="random-6l384")
    parser.add_argument("--json", action="store_true", help="a Measurement on stdout")
    parser.add_argument("--automatic", action="store_true", help="every other by the planner")
    parser.add_argument(
        "--durations-only", action="store_true", help="no cluster to compare answers with"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        options.trace = made_up(Path(name), options.seed) if options.automatic else SAMPLE
        figures = measure(Path(name), options)
    print_figures(figures, as_json=options.json)
    return 1 if any(figure.ok is False for figure in figures) else 0


def made_up(folder: Path, seed: int) -> str:
    """A trace of one kind of work, in a file."""
    trace = closed_trace(PREFILL_HEAVY, CONVERSATIONS, BLOCK_TOKENS, seed)
    file = folder / "made-up.jsonl"
    write(file, trace.header, trace.conversations)
    return str(file)


def measure(folder: Path, options: argparse.Namespace) -> list[Figure]:
    if options.durations_only:
        _, history = replay_moving(folder, options, [], None)
        return durations(history)
    changes: list[str] = []
    shell = cluster(folder, "still", options.model)
    try:
        still = replay(shell, options)
    finally:
        shell.end()
    plain = cluster(folder, "plain", options.model, reuse=False)
    try:
        target = plain.json("status")["gateway"]
        moving, history = replay_moving(folder, options, changes, target)
    finally:
        plain.end()
    return [*compared(still, moving, options, changes), *durations(history)]


def replay_moving(
    folder: Path, options: argparse.Namespace, changes: list[str], verify: str | None
) -> tuple[Run, list[dict[str, Any]]]:
    """The replay on a cluster whose split changes all the time, and the history of the changes."""
    more = AUTOMATIC.format(pace=json.dumps(PACE)) if options.automatic else ""
    warm_up_s = WARM_UP_S if options.automatic else 0.0
    shell = cluster(folder, "moving", options.model, more=more, warm_up_s=warm_up_s)
    move = alternating if options.automatic else changing
    try:
        run = replay(shell, options, verify or "", move(shell, changes, options.changes))
        return run, history(shell)
    finally:
        shell.end()


if __name__ == "__main__":
    sys.exit(main())
