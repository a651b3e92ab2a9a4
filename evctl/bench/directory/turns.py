"""What one more request of a known branch costs, from its arrival to its end."""

from __future__ import annotations

import gc
import time
from typing import Any

from evctl.bench.directory.inputs import KEY_BYTES, MATCH, Input
from evctl.bench.directory.ours import ROOT, TIER, Figures, Side, name, spread
from evctl.core.split import Phase
from evctl.policy.directory import Signal

GENERATED = 2
"""Blocks that decode completes in a turn; they are the first ones added to the next prompt."""


def turns(made: Input, keys: bytes, options: dict[str, Any]) -> Figures:
    """Every branch takes its turns, one of each in turn; a turn adds `added` blocks. sampled: the
    first so many only.

    match: the match alone, branch named, coverage included. arrive: match, context, placement.
    facts: what nodes report from then to the end of the request: stores, moves, the close.
    turn: arrive and facts. cold: the match of the same prompt without its branch. Every second
    turn is timed by the CPU time of its thread (cpu_...): what other work on a busy machine adds
    to the slowest hundredth is not in that.
    """
    side = Side(made, keys)
    for operation in made.operations:
        if operation[0] != MATCH:
            side.store(operation)
    driver = _Turns(side, options["context"], options["added"])
    for path in made.branches:
        driver.begin(path)
    gc.collect()
    chosen = made.branches[: options.get("sampled")]
    for number in range(options["turns"]):
        for path in chosen:
            driver.turn(path, cpu=number % 2 == 1)
    figures: Figures = {"context": options["context"], "branches": len(made.branches)}
    for label, times in driver.times_ns.items():
        figures |= spread(times, f"{label}_")
    return figures | {"runs": driver.runs}


class _Turns:
    """Branches that take turns, each between the two nodes that hold its context."""

    def __init__(self, side: Side, context: int, added: int) -> None:
        self.side = side
        self.added = added
        self.context = dict.fromkeys(side.made.branches, context)
        self.nodes: dict[int, tuple[str, str]] = {}
        for node, path, _, _ in side.made.operations:
            if node != MATCH and path in self.context:
                self.nodes[path] = (name(node - 1 if node else side.made.nodes - 1), name(node))
        self.times_ns: dict[str, list[int]] = {}
        self.runs = 0

    def begin(self, path: int) -> None:
        """The branch's first request: its context, held by both of its nodes."""
        directory = self.side.directory
        at, (prefill, decode) = f"first-{path}", self.nodes[path]
        prompt = self.side.slice(path, 0, self.context[path])
        directory.arrive(at, "tenant", ROOT, prompt, 0.0, Signal(f"branch-{path}"))
        for phase, node in ((Phase.PREFILL, prefill), (Phase.DECODE, decode)):
            directory.place(at, phase, node)
            directory.moved(at, phase)
        directory.closed(at, 0.0)
        directory.deltas()

    def turn(self, path: int, *, cpu: bool) -> None:
        """One request, timed by the clock or by the CPU time of this thread."""
        directory, side = self.side.directory, self.side
        old = self.context[path]
        end = self.context[path] = old + self.added
        prefill, decode = self.nodes[path]
        at, branch = f"{path}-{end}", f"branch-{path}"
        prompt = side.slice(path, 0, end)
        new, generated = side.slice(path, old, end), side.slice(path, end, end + GENERATED)
        parent, last = side.parent(path, old), prompt[-KEY_BYTES:]
        signal = Signal(branch)
        clock = time.thread_time_ns if cpu else time.perf_counter_ns

        started = clock()
        directory.match(prompt)
        cold = clock()
        directory.match(prompt, "tenant", branch)
        matched = clock()
        found = directory.arrive(at, "tenant", ROOT, prompt, 1.0, signal)
        directory.place(at, Phase.PREFILL, prefill)
        directory.place(at, Phase.DECODE, decode)
        directory.promise(at, prefill, found.coverage.get(prefill, 0))
        arrived = clock()
        directory.stored(prefill, "1", TIER, parent, new, at)
        directory.moved(at, Phase.PREFILL)
        directory.release(at)
        directory.lease(at, Phase.DECODE, prefill, old, end)
        directory.stored(decode, "1", TIER, parent, new, at)
        directory.moved(at, Phase.DECODE)
        if generated:
            directory.stored(decode, "1", TIER, last, generated, at)
        directory.closed(at, 2.0)
        directory.deltas()
        ended = clock()

        for label, taken_ns in (
            ("cold", cold - started),
            ("match", matched - cold),
            ("arrive", arrived - matched),
            ("facts", ended - arrived),
            ("turn", ended - matched),
        ):
            name_of = f"cpu_{label}" if cpu else label
            self.times_ns.setdefault(name_of, []).append(taken_ns)
        if not self.runs:
            run, _ = directory.tree.descend(prompt, directory.tree.root, 0)
            self.runs = len(directory.tree.path(run))
