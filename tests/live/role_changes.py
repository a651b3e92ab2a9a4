"""Changes of role under replay lose no KV and no request, and change no answer:
`python -m tests.live.role_changes [--changes 20] [--requests 240] [--verify 4]`.

The same recorded conversations are replayed three times with one seed: on a cluster whose split
never changes, on one whose split changes all the time in both directions, and (every Nth request
of the latter) on engines that reuse nothing. A request that goes on from an earlier one of its
branch must find as many cached tokens with the changes as without.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.live.shell import Shell

TEXT = """\
name: {name}
nodes: 3
split: 2P1D
warm_up_s: 0
model: {model}
block_tokens: 4
l1_tokens: 65536
l2_tokens: {l2_tokens}
prefix_cache: {cache}
allow_replay: true
gateway: {{port: 0}}
"""
SPLITS = ("1P2D", "2P1D")


def cluster(folder: Path, name: str, model: str, *, reuse: bool = True) -> Shell:
    """A cluster of that name with directories of its own, up."""
    home = folder / name
    home.mkdir(parents=True)
    text = TEXT.format(
        name=name,
        model=model,
        cache="true" if reuse else "false",
        l2_tokens=131072 if reuse else 0,
    )
    shell = Shell(home, text, name)
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
        *("trace", "replay", "sample", "-c", shell.name, "--agents", str(options.agents)),
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--requests", type=int, default=240)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verify", type=int, default=4, help="every Nth request")
    parser.add_argument("--model", default="random-6l384")
    options = parser.parse_args()
    changes: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shell = cluster(folder, "still", options.model)
        try:
            still = replay(shell, options)
        finally:
            shell.end()
        plain = cluster(folder, "plain", options.model, reuse=False)
        shell = cluster(folder, "moving", options.model)
        try:
            target = plain.json("status")["gateway"]
            moving = replay(shell, options, target, changing(shell, changes, options.changes))
        finally:
            shell.end()
            plain.end()
    both = sum(r["index"] > 0 and i in still.records for i, r in moving.records.items())
    fewer = compare(still, moving)
    extras = moving.report["extras"]
    print(f"{len(changes)} changes of the split under {moving.report['requests']} requests")
    print(f"failed: {moving.report['failed']} (without changes {still.report['failed']})")
    print(
        f"hit rate: {moving.report['kv_hit_rate']:.4f} (without {still.report['kv_hit_rate']:.4f})"
    )
    told = {k: v for k, v in extras.items() if k.startswith(("verif", "wrong", "mismatch"))}
    print(f"verified against a cacheless cluster: {json.dumps(told)}")
    print(
        f"requests that go on from an earlier one: {both}, with fewer cached tokens: {len(fewer)}"
    )
    for line in fewer[:20]:
        print(f"  {line}")
    failed = moving.report["failed"] + still.report["failed"]
    return 1 if fewer or failed or len(changes) < options.changes else 0


if __name__ == "__main__":
    sys.exit(main())
