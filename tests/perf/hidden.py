"""How much of the time that KV takes to come is hidden under waits:
`python -m tests.perf.hidden [--agents 3 8 16] [--requests 150] [--seed 1]`.

Recorded conversations on engines with a pool, at three loads; at each once with fetches that begin
when a request queues, and once with fetches that begin when it could start (the switch
`fetch: at-start`), same seed, `--repeats` times in turns. Share hidden = 1 - (time that requests
could have run but for their KV) / (time that it was on its way), by the engines' own clocks. Time
in which all of it lay in L2 and a request had no slots is told apart (`queued`). It was part of a
fetch's time once; the share by that count, exposed / (on its way + queued), is told too.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.live.role_changes import SAMPLE, replay
from tests.live.shell import Shell

TEXT = """\
name: {name}
nodes: 3
split: 2P1D
warm_up_s: 0
model: random-6l384
block_tokens: 4
l1_tokens: {l1_tokens}
l2_tokens: 131072
transfer: shm
fetch: {fetch}
allow_replay: true
gateway: {{port: 0}}
"""


def measure(folder: Path, fetch: str, options: argparse.Namespace) -> dict[str, Any]:
    """One replay on a fresh cluster: the report, and the pool as the control plane counts it."""
    home = folder / f"{fetch}-{options.agents}"
    home.mkdir()
    name = "hidden"
    text = TEXT.format(name=name, fetch=fetch, l1_tokens=options.l1_tokens)
    shell = Shell(home, text, name)
    shell.json(f"up {name}.yaml")
    try:
        run = replay(shell, options)
        pool = shell.json("status")["pool"]
    finally:
        shell.end()
    return {"report": run.report, "pool": pool}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, nargs="+", default=[3, 8, 16])
    parser.add_argument("--requests", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--l1-tokens", type=int, default=32768)
    parser.add_argument("--repeats", type=int, default=1)
    parser.set_defaults(trace=SAMPLE)
    options = parser.parse_args()
    loads = options.agents
    for agents in loads:
        options.agents = agents
        for number in range(options.repeats):
            order = ("queued", "at-start") if number % 2 == 0 else ("at-start", "queued")
            for fetch in order:
                with tempfile.TemporaryDirectory() as name:
                    found = measure(Path(name), fetch, options)
                print(f"{agents:3} agents  {fetch:9} {line(found)}", flush=True)
    return 0


def line(found: dict[str, Any]) -> str:
    """What is told of a replay."""
    report, pool = found["report"], found["pool"]
    ttft, hidden = report["ttft_s"], pool["share_hidden"]
    share = "-" if hidden is None else f"{hidden:.1%}"
    whole_s = pool["fetch_s"] + pool["fetch_queued_s"]
    with_queue = f"{1.0 - pool['exposed_s'] / whole_s:.1%}" if whole_s else "-"
    return (
        f"ttft mean {ttft['mean']:.3f} p50 {ttft['p50']:.3f} p95 {ttft['p95']:.3f} s  "
        f"failed {report['failed']}  hit {report['kv_hit_rate']:.3f} of "
        f"{report['kv_hit_rate_ideal']:.3f}  fetched in {pool['fetch_s']:.2f} s, exposed "
        f"{pool['exposed_s']:.2f}, hidden {share}, queued {pool['fetch_queued_s']:.2f} s, "
        f"with that {with_queue}  "
        f"pool {json.dumps(pool)}"
    )


if __name__ == "__main__":
    sys.exit(main())
