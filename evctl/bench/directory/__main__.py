"""`python -m evctl.bench.directory TASK FILE OPTIONS`: one task, its figures as a line of JSON.

The peers' scripts take the same arguments and give the same figures, or those they have.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from evctl.bench.directory import inputs, ours
from evctl.bench.directory.hashing import hashing, tokenising
from evctl.bench.directory.turns import turns

TASKS = {
    "match": ours.match,
    "recorded": ours.recorded,
    "ingest": ours.ingest,
    "memory": ours.memory,
    "leave": ours.leave,
    "turns": turns,
    "hashing": hashing,
    "tokenising": tokenising,
}


def main() -> None:
    """Run the task that the command line names."""
    task, file, options = sys.argv[1:]
    made, keys = inputs.read(Path(file))
    sys.stdout.write(json.dumps(TASKS[task](made, keys, json.loads(options))) + "\n")


if __name__ == "__main__":
    main()
