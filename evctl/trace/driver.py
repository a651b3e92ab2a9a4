"""Agents that replay recorded conversations against a target: a closed loop.

Each of N agents replays one conversation after another. Inside a conversation every branch sends
its requests in order, each after the answer to the one before and the recorded pause; sub-agents
run beside their parent, which waits for them where the recording did. Agents start at staggered
points of their first conversation, so that they do not all begin with short prompts.

Which conversation an agent plays, where it starts, and all tokens follow from the seed; only
`max_requests` cuts by time, at the request that happens to be the last.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import IO

import msgspec

from evctl.core.errors import UsageError
from evctl.trace.content import ContentMap, RequestTokens, branch_tokens
from evctl.trace.measure import Clock, Progress, Recorder, ReplayResult
from evctl.trace.plan import Assignment, ReplayOptions, assignments
from evctl.trace.requests import Exchange, Quota
from evctl.trace.schema import Branch, Trace
from evctl.trace.stats import ReuseCounter
from evctl.trace.target import BranchHeaders, CompletionRequest, Target
from evctl.trace.verify import Mismatch, Verdict, Verifier, compare

PROGRESS_PERIOD_S = 0.5

REWRITES = ("compact", "rewind")
"""Marks of requests that drop blocks of the prompt before: the branch's version rises."""


class Replay:
    """One replay. Call run() once."""

    def __init__(
        self,
        trace: Trace,
        target: Target,
        options: ReplayOptions,
        *,
        verifier: Verifier | None = None,
        record: IO[bytes] | None = None,
        progress: Callable[[Progress], None] | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        if options.verify_every and verifier is None:
            raise UsageError(
                what="cannot verify",
                why="there is nothing to compare with",
                next_step="give the URL of an engine without a cache as well",
                code="EV-1608",
            )
        if not trace.conversations:
            raise UsageError(
                what="cannot replay this trace",
                why="it has no conversations",
                next_step="give another trace, or `sample`",
                code="EV-1607",
            )
        self._trace = trace
        self.options = options
        self.content = ContentMap(
            trace.header.block_tokens, options.scale, seed=options.seed, vocab=options.vocab
        )
        self._verifier = verifier
        self._progress = progress
        self.reuse = ReuseCounter()
        # A probe makes KV that no request of the trace made: up to a block more.
        self.recorder = Recorder(clock, record, slack_tokens=self.content.scaled_tokens)
        self.quota = Quota(options.max_requests, 20 + 5 * options.agents)
        self.exchange = Exchange(
            target,
            self.recorder,
            self.quota,
            clock=clock,
            retry=options.retry,
            timeout_s=options.request_timeout_s,
            probe_every=options.verify_every,
        )

    def interrupt(self) -> None:
        """Have run() return soon with what is done: nothing more is sent, what is in flight is
        dropped, and the target is told that its branches are over."""
        self.exchange.interrupt()

    async def run(self) -> ReplayResult:
        """Replay to the end. Failed requests are in the result; nothing is raised for them, except
        ForGoodError when the target refuses all and answered none."""
        async with self._reporting(), asyncio.TaskGroup() as agents:
            for agent in range(self.options.agents):
                plan = assignments(self._trace, self.options, agent)
                agents.create_task(self._agent(plan))
        result = self.recorder.result(
            agents=self.options.agents,
            seed=self.options.seed,
            scale=str(self.options.scale),
            aborted=self.quota.aborted,
            interrupted=self.quota.interrupted,
        )
        if self.quota.refused is not None and not result.done:
            raise self.quota.refused
        if self.options.verify_every:
            verdict = await self._verify()
            interrupted = self.quota.interrupted
            result = msgspec.structs.replace(result, verdict=verdict, interrupted=interrupted)
        return result

    # ------------------------------------------------------------ agents and branches

    async def _agent(self, plan: Iterable[Assignment]) -> None:
        for assignment in plan:
            if self.quota.closed:
                return
            self.recorder.counts["conversations"] += 1
            await _Run(self, assignment).play()

    async def pause(self, wait_s: float) -> float:
        """Wait as the options say, or until sending ends; returns the seconds meant."""
        wait_s *= self.options.time_scale
        if self.options.gap_cap_s is not None:
            wait_s = min(wait_s, self.options.gap_cap_s)
        if wait_s > 0:
            await self.quota.wait_closed(wait_s)
        return wait_s

    # ------------------------------------------------------------ progress and verification

    @asynccontextmanager
    async def _reporting(self) -> AsyncIterator[None]:
        async def report() -> None:
            while True:
                self._report()
                await asyncio.sleep(PROGRESS_PERIOD_S)

        reporter = asyncio.create_task(report())
        try:
            yield
        finally:
            reporter.cancel()
            self._report()

    def _report(self, verifying: tuple[int, int] | None = None) -> None:
        if self._progress is not None:
            self._progress(self.recorder.progress(self.options.max_requests, verifying))

    async def _verify(self) -> Verdict:
        """Rerun the probes one at a time, after the replay, so that it was not disturbed."""
        assert self._verifier is not None
        probes = self.exchange.probes
        mismatches: list[Mismatch] = []
        checked, tokens, logprobs, unchecked = 0, 0, 0, self.exchange.lost_probes
        for number, probe in enumerate(probes):
            if self.quota.interrupted:
                unchecked += len(probes) - number
                break
            self._report((number, len(probes)))
            right = await self.exchange.rerun(self._verifier, probe.request)
            if right is None:
                unchecked += 1
                continue
            checked += 1
            tokens += right.tokens
            logprobs += len(right.logprobs)
            if found := compare(probe.checks, probe.answer, right):
                mismatches.append(found)
        self._report((len(probes), len(probes)))
        return Verdict(checked, unchecked, tokens, logprobs, tuple(mismatches), self.options.exact)


class _Run:
    """One conversation of one agent."""

    def __init__(self, replay: Replay, assignment: Assignment) -> None:
        self._replay = replay
        self._assignment = assignment
        self._conversation = assignment.conversation
        self._session = f"{self._conversation.id}.s{replay.options.seed}.{assignment.instance}"
        run = replay.options.run
        self._named = f"{self._session}.{run}" if run else self._session
        """The session as the target knows it."""
        self._ended = {branch.id: asyncio.Event() for branch in self._conversation.branches}
        self._open: dict[str, bool] = {}
        """Branches that the target has heard of, and whether it waits for more of them."""
        self._children: dict[tuple[str, int], list[Branch]] = {}
        self._joins: dict[tuple[str, int], list[Branch]] = {}
        for branch in self._conversation.branches[1:]:
            self._children.setdefault((branch.parent, branch.after), []).append(branch)
            if branch.join is not None:
                self._joins.setdefault((branch.parent, branch.join), []).append(branch)

    async def play(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._branch(self._conversation.root, self._assignment.start, tasks))
        self._replay.reuse.close(self._session)

    async def _branch(self, branch: Branch, start: int, tasks: asyncio.TaskGroup) -> None:
        replay = self._replay
        replay.recorder.live_branches.add(1)
        replay.recorder.counts["branches"] += 1
        try:
            await self._requests(branch, start, tasks)
            if self._open.pop(branch.id, False):
                # Cut short, or its last request failed: nothing else would ever end it there.
                heard = await replay.exchange.end_branch(self._name(branch.id))
                replay.recorder.counts["branches_cut" if heard else "branches_left"] += 1
        finally:
            replay.recorder.live_branches.add(-1)
            self._ended[branch.id].set()

    async def _requests(self, branch: Branch, start: int, tasks: asyncio.TaskGroup) -> None:
        """Send the requests of a branch from `start` on. What began before it never runs."""
        replay = self._replay
        # Spawned by this branch's own start.
        started = self._spawn(branch, -1, tasks) if start == 0 else set()
        if branch.parent:
            await replay.pause(branch.delay_s)
        version = sum(request.mark in REWRITES for request in branch.requests[:start])
        previous: RequestTokens | None = None
        tokens = branch_tokens(
            replay.content, self._conversation, branch, self._assignment.instance, start
        )
        for step in tokens:
            for child in self._joins.get((branch.id, step.index), []):
                if child.id in started:
                    await self._ended[child.id].wait()
            pause_s = await replay.pause(step.request.wait_s)
            if not replay.quota.take():
                return
            version += step.request.mark in REWRITES
            headers = self._headers(branch, step, version)
            done = await replay.exchange.send(
                self._assignment.agent,
                self._request(branch, step, headers),
                index=step.index,
                conversation=self._conversation.id,
                pause_s=pause_s,
                ideal_tokens=self._ideal_tokens(step, previous),
            )
            self._open[branch.id] = not (done and headers.final)
            previous = step if done else None
            started |= self._spawn(branch, step.index, tasks)

    def _spawn(self, branch: Branch, after: int, tasks: asyncio.TaskGroup) -> set[str]:
        children = self._children.get((branch.id, after), [])
        for child in children:
            tasks.create_task(self._branch(child, 0, tasks))
        return {child.id for child in children}

    def _name(self, branch_id: str) -> str:
        """A branch as the target knows it."""
        return f"{self._named}/{branch_id}"

    def _headers(self, branch: Branch, step: RequestTokens, version: int) -> BranchHeaders:
        op = "continue"
        if step.index == 0 and branch.parent:
            op = "fork" if branch.kind == "fork" else "spawn"
        elif step.request.mark == "compact":
            op = "compact"
        kind = "subagent" if branch.kind == "subagent" else "main"
        return BranchHeaders(
            branch=self._name(branch.id),
            session=self._named,
            parent=self._name(branch.parent) if branch.parent else "",
            op=op,
            version=version,
            final=step.index == len(branch.requests) - 1,
            kind=step.request.kind or kind,
        )

    def _request(
        self, branch: Branch, step: RequestTokens, headers: BranchHeaders
    ) -> CompletionRequest:
        return CompletionRequest(
            id=f"{self._session}/{branch.id}/{step.index}",
            prompt=step.prompt,
            max_tokens=len(step.output),
            forced=step.output,
            branch=headers,
        )

    def _ideal_tokens(self, step: RequestTokens, previous: RequestTokens | None) -> int:
        """Prompt tokens whose KV an earlier request of the replay made."""
        block_tokens = self._replay.content.scaled_tokens
        made = 0
        if previous is not None and previous.carried:
            # The last token of an output has no KV.
            made = (len(previous.prompt) + previous.carried - 1) // block_tokens
        seen = self._replay.reuse.add(self._session, step.blocks)
        return max(seen, min(made, len(step.blocks))) * block_tokens
