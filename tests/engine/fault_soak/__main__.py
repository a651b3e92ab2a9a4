"""`python -m tests.engine.fault_soak --backend shm|mooncake --kind KIND|all|sigkill|sigstop`.

A line a round goes to stderr and the log, the table to stdout. Exit 1 on any violation.
A round of a transfer fault has --burst of them; one of sigkill or sigstop has one. mooncake enters
a network namespace (root).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from evengine.models.store import ensure_model
from evengine.transfer.faults import FaultKind
from tests.engine.fault_soak.cluster import Cluster
from tests.engine.fault_soak.corpus import ROOTS, make_corpus
from tests.engine.fault_soak.rounds import Round, Rounds
from tests.netns import ENTER, INSIDE

KINDS = tuple(kind.value for kind in FaultKind)
SIGNALS = ("sigkill", "sigstop")
COLUMNS = [
    *("kind", "rounds", "faults", "requests", "cancelled", "lost", "fetched", "pushes"),
    *("refused", "wrong", "hangs", "leaks", "seconds"),
]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fault_soak", description=__doc__)
    parser.add_argument("--backend", choices=("shm", "mooncake"), default="shm")
    parser.add_argument("--kind", choices=(*KINDS, *SIGNALS, "transfers", "all"), default="all")
    parser.add_argument("--rounds", type=int, default=5, help="of each kind")
    parser.add_argument("--burst", type=int, default=40, help="transfer faults in a round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="random-4l256")
    parser.add_argument("--folder", type=Path, help="for logs; a temporary one if not given")
    arguments = parser.parse_args(argv)
    if arguments.backend == "mooncake" and INSIDE not in os.environ:
        return _again_in_namespace(sys.argv[1:] if argv is None else argv)
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="evctl-faults-"))
    folder.mkdir(exist_ok=True)
    kinds = {"all": KINDS + SIGNALS, "transfers": KINDS}.get(arguments.kind, (arguments.kind,))
    rounds = run(
        folder=folder,
        backend=arguments.backend,
        kinds=kinds,
        count=arguments.rounds,
        burst=arguments.burst,
        seed=arguments.seed,
        model=arguments.model,
    )
    return 1 if any(one.tally.violations for one, _ in rounds) else 0


def run(
    *,
    folder: Path,
    backend: str,
    kinds: Iterable[str],
    count: int,
    burst: int,
    seed: int,
    model: str = "random-4l256",
    roots: int = ROOTS,
    options: Sequence[str] = (),
) -> list[tuple[Round, float]]:
    """All rounds, and how long each took. Prints as it goes, and the table at the end. roots: of
    the corpus; options: of the engines."""
    prepared = ensure_model(model)
    started_s = time.monotonic()
    corpus = make_corpus(folder / "corpus", prepared, seed, roots)
    done: list[tuple[Round, float]] = []
    print(
        f"{len(corpus)} prompts; {time.monotonic() - started_s:.1f} s; logs in {folder}",
        file=sys.stderr,
    )
    with (
        Cluster(folder, prepared, backend, options) as cluster,
        (folder / "rounds.log").open("a") as log,
    ):
        cluster.settle()
        rounds = Rounds(cluster, corpus, seed)
        try:
            for kind in kinds:
                for number in range(count):
                    started_s = time.monotonic()
                    this = _one(rounds, kind, burst)
                    took_s = time.monotonic() - started_s
                    done.append((this, took_s))
                    line = _line(number, this, took_s)
                    print(line, file=sys.stderr, flush=True)
                    print(line, file=log, flush=True)
        finally:
            print(table(done))
    return done


def _one(rounds: Rounds, kind: str, burst: int) -> Round:
    if kind == "sigkill":
        return rounds.killed()
    return rounds.stopped() if kind == "sigstop" else rounds.transfers(FaultKind(kind), burst)


def _line(number: int, this: Round, took_s: float) -> str:
    tally = this.tally
    what = f" ({this.note})" if this.note else ""
    head = (
        f"{this.kind} {number}{what}: {this.faults} faults, {tally.requests} requests, "
        f"{tally.cancelled} cancelled, {tally.lost} lost, {this.peer_blocks} blocks fetched, "
        f"{this.moves} pushes, {this.refused} blocks refused, {took_s:.1f} s"
    )
    return "\n".join([head, *(f"    VIOLATION {line}" for line in tally.violations)])


def table(done: Sequence[tuple[Round, float]]) -> str:
    """One row a kind."""
    rows = [COLUMNS]
    for kind in dict.fromkeys(this.kind for this, _ in done):
        some = [(this, took_s) for this, took_s in done if this.kind == kind]
        tallies = [this.tally for this, _ in some]
        numbers = (
            len(some),
            sum(this.faults for this, _ in some),
            sum(tally.requests for tally in tallies),
            sum(tally.cancelled for tally in tallies),
            sum(tally.lost for tally in tallies),
            sum(this.peer_blocks for this, _ in some),
            sum(this.moves for this, _ in some),
            sum(this.refused for this, _ in some),
            sum(len(tally.wrong) for tally in tallies),
            sum(len(tally.hangs) for tally in tallies),
            sum(len(tally.leaks) for tally in tallies),
            round(sum(took_s for _, took_s in some)),
        )
        rows.append([kind, *map(str, numbers)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def _again_in_namespace(argv: Sequence[str]) -> int:
    command = [sys.executable, "-m", "tests.engine.fault_soak", *argv]
    return subprocess.run(
        ["unshare", "-n", "sh", "-c", ENTER, "sh", *command],
        env={**os.environ, INSIDE: "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
