"""Agents and nodes in a closed loop, event by event."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Protocol

from evctl.bench.planner.world.laws import Laws
from evctl.bench.planner.world.work import Mix, Work, tailed

MOST_UNCACHED = 150_000.0
ITERATION_TOKENS = 0.5
"""A request decodes half a token at least."""


class Observer(Protocol):
    """What a control plane would be told, in order of time."""

    def arrived(self, request: str, branch: str, now_s: float) -> None: ...
    def began(self, request: str, uncached: int, cached: int, now_s: float) -> None: ...
    def sampled(self, request: str, now_s: float) -> None: ...
    def decodes(self, request: str, now_s: float) -> None: ...
    def done(
        self, request: str, branch: str, output: int, now_s: float, *, last: bool
    ) -> None: ...


class Branch:
    """An agent or a sub-agent. waits_for: children that have not ended."""

    __slots__ = ("left", "name", "parent", "waits_for")

    def __init__(self, name: str, parent: Branch | None, left: int) -> None:
        self.name = name
        self.parent = parent
        self.left = left
        self.waits_for = 0


class Request:
    __slots__ = ("branch", "cached", "ends_at", "iterations", "name", "output", "uncached")

    def __init__(self, name: str, branch: Branch, uncached: int, cached: int, output: int) -> None:
        self.name = name
        self.branch = branch
        self.uncached = uncached
        self.cached = cached
        self.output = output
        self.iterations = 0.0
        self.ends_at = 0.0


class PrefillNode:
    """One prompt at a time, first come first served. free_s: when its queue will be empty, as
    far as can be known."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.queue: deque[tuple[Request, float]] = deque()
        self.running: Request | None = None
        self.work_s = 0.0


class DecodeNode:
    """All requests of the batch advance together; `progress` counts iterations so far."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.batch: list[tuple[float, int, Request]] = []
        self.context_tokens = 0.0
        self.progress = 0.0
        self.at_s = 0.0
        self.iteration_s = 1.0
        self.version = 0


class World:
    """One split under one work. Nodes 0 to prefill_nodes - 1 prefill, the others decode."""

    def __init__(self, laws: Laws, work: Work, prefill_nodes: int, seed: int) -> None:
        self.laws = laws
        self.work = work
        self.now_s = 0.0
        self.done = 0
        self.watcher: Observer | None = None
        self._random = Random(seed)
        self._mix = Mix(work, Random(seed + 1))
        self._prefill = [PrefillNode(i) for i in range(prefill_nodes)]
        self._decode = [DecodeNode(i) for i in range(prefill_nodes, len(laws.speeds))]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0
        for index in range(work.agents):
            agent = Branch(f"a{index}", None, 1 << 30)
            self._at(self._random.uniform(0.0, 2.0 * work.pause_s), self._starter(agent))

    def play(self, until_s: float) -> None:
        """Go on to that time."""
        events = self._events
        while events and events[0][0] <= until_s:
            self.now_s, _, act = heappop(events)
            act()
        self.now_s = until_s

    # ------------------------------------------------------------ agents

    def _starter(self, branch: Branch) -> Callable[[], None]:
        return lambda: self._ask(branch)

    def _ask(self, branch: Branch) -> None:
        work, random = self.work, self._random
        more_uncached, more_output = self._mix.at(self.now_s)
        small = 0.5 if branch.parent is not None else 1.0
        uncached = tailed(random, work.uncached_tokens * more_uncached * small, work.uncached_tail)
        output = tailed(random, work.output_tokens * more_output, work.output_tail)
        cached = work.context_tokens * small * random.uniform(0.4, 1.6)
        self._numbers += 1
        request = Request(
            f"r{self._numbers}",
            branch,
            1 + int(min(uncached, MOST_UNCACHED)),
            int(cached),
            1 + int(output),
        )
        if self.watcher is not None:
            self.watcher.arrived(request.name, branch.name, self.now_s)
        node = min(self._prefill, key=lambda n: n.work_s)
        length_s = self.laws.prefill_s(node.index, request.uncached, request.cached, random)
        node.work_s += length_s
        node.queue.append((request, length_s))
        self._next_prefill(node)

    def _answered(self, request: Request) -> None:
        branch = request.branch
        branch.left -= 1
        self.done += 1
        ends = branch.left <= 0
        if self.watcher is not None:
            self.watcher.done(request.name, branch.name, request.output, self.now_s, last=ends)
        random, work = self._random, self.work
        if ends:
            parent = branch.parent
            if parent is not None:
                parent.waits_for -= 1
                if not parent.waits_for:
                    self._pause(parent)
            return
        if branch.parent is None and random.random() < work.spawn:
            self._spawn(branch)
        else:
            self._pause(branch)

    def _spawn(self, parent: Branch) -> None:
        count = 1 + int(self._random.expovariate(1.0 / max(1e-9, self.work.children - 0.5)))
        parent.waits_for = count
        for index in range(count):
            self._numbers += 1
            name = f"{parent.name}.{self._numbers}.{index}"
            child = Branch(name, parent, self.work.child_requests)
            self._at(self.now_s + self._random.uniform(0.0, 0.5), self._starter(child))

    def _pause(self, branch: Branch) -> None:
        mean_s = self.work.pause_s * (0.4 if branch.parent is not None else 1.0)
        self._at(self.now_s + tailed(self._random, mean_s, 1.0), self._starter(branch))

    # ------------------------------------------------------------ nodes

    def _next_prefill(self, node: PrefillNode) -> None:
        if node.running is not None or not node.queue:
            return
        request, length_s = node.queue.popleft()
        node.running = request
        if self.watcher is not None:
            self.watcher.began(request.name, request.uncached, request.cached, self.now_s)
        self._at(self.now_s + length_s, lambda: self._prefilled(node, request, length_s))

    def _prefilled(self, node: PrefillNode, request: Request, length_s: float) -> None:
        node.running = None
        node.work_s -= length_s
        if self.watcher is not None:
            self.watcher.sampled(request.name, self.now_s)
        delay_s = self.laws.hand_over_s * math.exp(self._random.gauss(0.0, 0.3))
        self._at(self.now_s + delay_s, lambda: self._decode_it(request))
        self._next_prefill(node)

    def _decode_it(self, request: Request) -> None:
        if self.watcher is not None:
            self.watcher.decodes(request.name, self.now_s)
        node = min(self._decode, key=lambda n: len(n.batch))
        self._catch_up(node)
        accepted = self.laws.accepted * math.exp(self._random.gauss(0.0, 0.1))
        iterations = max(ITERATION_TOKENS, request.output / accepted)
        self._numbers += 1
        heappush(node.batch, (node.progress + iterations, self._numbers, request))
        node.context_tokens += request.cached + request.uncached
        self._plan(node)

    def _catch_up(self, node: DecodeNode) -> None:
        if node.batch:
            node.progress += (self.now_s - node.at_s) / node.iteration_s
        node.at_s = self.now_s

    def _plan(self, node: DecodeNode) -> None:
        """When the next request of the batch ends, if nothing changes before."""
        node.version += 1
        if not node.batch:
            return
        noise = math.exp(self._random.gauss(0.0, self.laws.noise / 2.0))
        iteration_s = self.laws.iteration_s(node.index, len(node.batch), node.context_tokens)
        node.iteration_s = iteration_s * noise
        left = max(0.0, node.batch[0][0] - node.progress)
        version = node.version
        self._at(self.now_s + left * node.iteration_s, lambda: self._decoded(node, version))

    def _decoded(self, node: DecodeNode, version: int) -> None:
        if version != node.version:
            return
        self._catch_up(node)
        _, _, request = heappop(node.batch)
        node.context_tokens -= request.cached + request.uncached
        self._plan(node)
        self._answered(request)

    def _at(self, time_s: float, act: Callable[[], None]) -> None:
        self._numbers += 1
        heappush(self._events, (time_s, self._numbers, act))
