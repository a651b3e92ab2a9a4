"""A peer for tests: takes what every peer's script takes, gives figures without measuring.

It reads the input with the standard library alone, as a script in the peers' environment does.
"""

from __future__ import annotations

import json
import sys

FIGURES = {
    "match": {"p50": 50.0, "p99": 90.0, "bare_p50": 40.0, "miss_p50": 30.0},
    "recorded": {"p50": 50.0, "p99": 90.0, "first_p99": 99.0},
    "turns": {"match_p50": 50.0, "match_p99": 90.0},
    "ingest": {"blocks_per_s": 1e-3},
    "memory": {"bytes_per_block": 1e9},
    "leave": {"ms": 1e9},
    "hashing": {"p50": 1.0, "us_per_block": 0.001},
}


def main() -> None:
    task, file, options = sys.argv[1:]
    with open(file, "rb") as data:  # noqa: PTH123
        head, _, keys = data.read().partition(b"\n")
    made = json.loads(head)
    if len(keys) != 16 * made["blocks"]:
        sys.exit(f"{len(keys)} bytes of keys for {made['blocks']} blocks")
    if json.loads(options).get("fail"):
        sys.exit("told to fail")
    asked = sum(node == -1 for node, _, _, _ in made["operations"])
    figures = FIGURES[task] | {"nodes": made["nodes"], "prompts": asked}
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
