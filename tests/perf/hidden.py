"""How much of the time that KV takes to come is hidden under waits:
`python -m tests.perf.hidden [--agents 3 8 16] [--requests 150] [--seed 1]`.

Recorded conversations on engines with a pool, at three loads; at each once with fetches that begin
when a request queues, and once with fetches that begin when it could start (the switch
`fetch: at-start`), same seed. Share hidden = 1 - (time that requests could have run but for their
KV) / (time that their fetches took), by the engines' own clocks.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.live.role_changes import replay
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
    options = parser.parse_args()
    loads = options.agents
    with tempfile.TemporaryDirectory() as name:
        for agents in loads:
            options.agents = agents
            for fetch in ("queued", "at-start"):
                found = measure(Path(name), fetch, options)
                report, pool = found["report"], found["pool"]
                ttft = report["ttft_s"]
                hit, ideal = report["kv_hit_rate"], report["kv_hit_rate_ideal"]
                print(
                    f"{agents:3} agents  {fetch:9} ttft mean {ttft['mean']:.3f} p95 "
                    f"{ttft['p95']:.3f} s  failed {report['failed']}  hit {hit:.3f} of {ideal:.3f}"
                    f"  pool {json.dumps(pool)}",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
