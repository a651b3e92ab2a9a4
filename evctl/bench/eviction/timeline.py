"""What agents do to a pool, in order of time: the same for every eviction order.

Agents play recorded conversations one after another, pauses as recorded up to a cap. An order
changes what is lost, not when requests come, so that losses can be compared block by block.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence

import msgspec

from evctl.bench.eviction.endings import Endings
from evctl.bench.eviction.references import References
from evctl.bench.eviction.stretches import Shape
from evctl.policy.eviction import Ending
from evctl.trace.plan import Assignment, ReplayOptions, assignments
from evctl.trace.schema import Branch, Trace, TraceHeader, TraceRequest

NEVER = 2**32 - 1
UNKNOWN_SERVICE_S = (2.0, 1 / 60)
"""For a response whose duration is not on record: seconds, and seconds for each output token."""
STAGGER_S = 60.0


class Load(msgspec.Struct, frozen=True):
    """How conversations are played. Times in simulated seconds; what happens before
    measure_from_s only fills the pool."""

    agents: int
    seed: int
    gap_cap_s: float
    duration_s: float
    measure_from_s: float


class Event(msgspec.Struct, gc=False):
    """One thing that happens to branch `branch`.

    kind: 0 a request with `path` (stretches, root first), of which the first `seen` had been
    computed before; 1 its response is complete, `last` if the branch then ends. dropped and
    taken: stretches that no live branch references any more, and that one does again.
    slot: where the next uses of the path begin in Timeline.next_use.
    """

    time_s: float
    kind: int
    branch: int
    path: Sequence[int] = ()
    seen: int = 0
    slot: int = 0
    ending: Ending = Ending.UNKNOWN
    last: bool = False
    dropped: Sequence[int] = ()
    taken: Sequence[int] = ()


class Timeline(msgspec.Struct):
    """Events and what they are about. blocks, depths: of each stretch; next_use: index of the
    event that uses a stretch next, NEVER if none; live_blocks: mean, over the measured time, of
    the distinct blocks that live branches reference."""

    load: Load
    events: list[Event]
    blocks: list[int]
    depths: list[int]
    next_use: array[int]
    live_blocks: float
    requests: int
    conversations: int


class _Player:
    """One agent's conversation: when each of its requests starts and ends.

    All is known beforehand, as nothing that happens to the pool moves it.
    """

    def __init__(self, assignment: Assignment, gap_cap_s: float) -> None:
        self._branches = assignment.conversation.branches
        self._start = assignment.start
        self._cap_s = gap_cap_s
        self._children: dict[str, list[int]] = {}
        for index, branch in enumerate(self._branches[1:], 1):
            self._children.setdefault(branch.parent, []).append(index)
        self.times: list[tuple[int, int, float, float]] = []
        self.ended_s: dict[int, float] = {}

    def play(self, now_s: float) -> float:
        """Fills `times` (branch, request, start, end); returns when the root ends."""
        return self._branch(0, now_s, self._start)

    def _branch(self, index: int, now_s: float, first: int) -> float:
        branch = self._branches[index]
        children = self._children.get(branch.id, ())
        waits: dict[int, float] = {}

        def spawn(after: int, at_s: float) -> None:
            for child in children:
                spawned = self._branches[child]
                if spawned.after == after:
                    delay_s = min(spawned.delay_s, self._cap_s)
                    done_s = self._branch(child, at_s + delay_s, 0)
                    if spawned.join is not None:
                        waits[spawned.join] = max(waits.get(spawned.join, 0.0), done_s)

        if first == 0:
            spawn(-1, now_s)
        for number in range(first, len(branch.requests)):
            request = branch.requests[number]
            pause_s = min(request.wait_s, self._cap_s) if number > first else 0.0
            start_s = max(now_s, waits.get(number, 0.0)) + pause_s
            now_s = start_s + _service_s(request)
            self.times.append((index, number, start_s, now_s))
            spawn(number, now_s)
        self.ended_s[index] = now_s
        return now_s


def _service_s(request: TraceRequest) -> float:
    if request.service_s is not None:
        return request.service_s
    return UNKNOWN_SERVICE_S[0] + UNKNOWN_SERVICE_S[1] * request.out_tokens


def build(header: TraceHeader, shapes: Sequence[Shape], endings: Endings, load: Load) -> Timeline:
    """The timeline of one load. Two builds of the same are equal."""
    return _Builder(header, shapes, endings, load).run()


class _Instance:
    """A conversation as one agent plays it: its own stretches, except the shared ones."""

    def __init__(self, shape: Shape, numbers: list[int], first_branch: int) -> None:
        self.shape = shape
        self.numbers = numbers
        self.first_branch = first_branch
        self.paths: dict[int, list[int]] = {}

    def path(self, branch: int, number: int) -> list[int]:
        """Stretches of a prompt; called for a branch's requests in turn."""
        steps = self.shape.steps[branch]
        if branch not in self.paths and number > 0:  # the agent starts in the middle
            local: list[int] = []
            for step in steps[:number]:
                local = [*local[: step.keep], *step.add]
            self.paths[branch] = [self.numbers[i] for i in local]
        before = self.paths.get(branch, [])
        step = steps[number]
        path = [*before[: step.keep], *(self.numbers[i] for i in step.add)]
        self.paths[branch] = path
        return path


class _Builder:
    def __init__(
        self, header: TraceHeader, shapes: Sequence[Shape], endings: Endings, load: Load
    ) -> None:
        self._load = load
        self._endings = endings
        self._shapes = {shape.conversation.id: shape for shape in shapes}
        self._trace = Trace(header, tuple(shape.conversation for shape in shapes))
        self._blocks: list[int] = []
        self._depths: list[int] = []
        self._shared: dict[int, int] = {}
        self._branches = 0
        self._conversations = 0

    def run(self) -> Timeline:
        raw: list[tuple[float, int, int, int, int, _Instance]] = []
        for agent in range(self._load.agents):
            raw.extend(self._agent(agent))
        raw.sort(key=lambda item: item[:5])
        return self._tell(raw)

    def _agent(self, agent: int) -> Iterator[tuple[float, int, int, int, int, _Instance]]:
        """(time, kind, global branch, branch, request, instance) of all it does."""
        load = self._load
        options = ReplayOptions(agents=load.agents, seed=load.seed, max_requests=1)
        draw = random.Random(f"evctl-eviction-{load.seed}-{agent}")
        now_s = draw.uniform(0.0, STAGGER_S)
        for assignment in assignments(self._trace, options, agent):
            player = _Player(assignment, load.gap_cap_s)
            ends_s = player.play(now_s)
            instance = self._instance(assignment)
            self._conversations += 1
            for branch, request, start_s, end_s in player.times:
                name = instance.first_branch + branch
                if start_s <= load.duration_s:
                    yield start_s, 1, name, branch, request, instance
                    yield end_s, 0, name, branch, request, instance
            now_s = max(ends_s, now_s + 1.0)  # a conversation takes time, so that this ends
            if now_s > load.duration_s:
                return

    def _instance(self, assignment: Assignment) -> _Instance:
        shape = self._shapes[assignment.conversation.id]
        numbers = [self._number(*stretch) for stretch in shape.stretches]
        first = self._branches
        self._branches += len(shape.steps)
        return _Instance(shape, numbers, first)

    def _number(self, first: int, depth: int, blocks: int) -> int:
        if first < 0 and first in self._shared:
            return self._shared[first]
        self._blocks.append(blocks)
        self._depths.append(depth)
        number = len(self._blocks) - 1
        if first < 0:
            self._shared[first] = number
        return number

    def _tell(self, raw: list[tuple[float, int, int, int, int, _Instance]]) -> Timeline:
        load = self._load
        references = References(self._blocks, load.measure_from_s, load.duration_s)
        told = _Told([], array("L"), [-1] * len(self._blocks))
        requests = 0
        for time_s, kind, name, branch, number, instance in raw:
            if time_s > load.duration_s:
                break
            if kind == 1:
                path = instance.path(branch, number)
                changed = references.move(name, path, time_s)
                told.request(time_s, name, path, changed)
                requests += 1
                continue
            conversation = instance.shape.conversation
            event = Event(time_s, 1, name)
            event.ending = self._ending(conversation.id, conversation.branches[branch], number)
            event.last = number + 1 == len(conversation.branches[branch].requests)
            if event.last:
                event.dropped, _ = references.move(name, [], time_s)
            told.events.append(event)
        return Timeline(
            load=load,
            events=told.events,
            blocks=self._blocks,
            depths=self._depths,
            next_use=told.next_use,
            live_blocks=references.mean(),
            requests=requests,
            conversations=self._conversations,
        )

    def _ending(self, conversation: str, branch: Branch, number: int) -> Ending:
        known = self._endings.get((conversation, branch.id), ())
        return known[number] if len(known) == len(branch.requests) else Ending.UNKNOWN


class _Told:
    """Events so far. last_slot: where each stretch was used last, -1 if nowhere."""

    def __init__(self, events: list[Event], next_use: array[int], last_slot: list[int]) -> None:
        self.events = events
        self.next_use = next_use
        self._last_slot = last_slot

    def request(
        self,
        time_s: float,
        name: int,
        path: list[int],
        changed: tuple[Sequence[int], Sequence[int]],
    ) -> None:
        last_slot, next_use = self._last_slot, self.next_use
        event = Event(time_s, 0, name, path, slot=len(next_use))
        event.dropped, event.taken = changed
        event.seen = next((i for i, s in enumerate(path) if last_slot[s] < 0), len(path))
        next_use.extend([NEVER] * len(path))
        for place, stretch in enumerate(path, event.slot):
            if last_slot[stretch] >= 0:
                next_use[last_slot[stretch]] = len(self.events)
            last_slot[stretch] = place
        self.events.append(event)
