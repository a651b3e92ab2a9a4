"""How much ageing the shortest remaining prefill first needs: a sketch of one prefill node.

    python -m evctl.bench.router.ageing [TRACE] [--agents N ...]

Agents replay branches of a trace one after the other: a request's new tokens (all that its
branch's previous prompt did not have), its output at a fixed pace, the recorded pause. The node
computes in chunks, and who is in a chunk is decided at its beginning by policy.order.rank_s.

Recorded coding sessions, 60 agents, seconds to the first token, mean / P95 / P99 / most: by
arrival 4.5 / 28 / 53 / 94; ageing 1: 3.6 / 19 / 32 / 91; 0.3: 2.0 / 9.4 / 24 / 169; 0.1: 1.2 /
3.8 / 16 / 229; 0.01: 1.0 / 1.4 / 13 / 232. At 80 agents, busy for nine tenths: by arrival 7.2 / 40
/ 67 / 121; 0.1: 2.1 / 8.3 / 25 / 398; 0.01: 1.5 / 1.6 / 17 / 642. Hence 0.1: nearly all of what
there is to win; the longest prompts pay for it, at 80 agents with 398 s instead of 121 (642 with
next to no ageing).
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import statistics
import sys
from collections.abc import Iterator, Sequence

import msgspec

from evctl.policy.order import rank_s
from evctl.trace.files import SAMPLE, locate, open_trace

TOKEN_S = 5e-5
"""Of prefill; 20,000 tokens a second."""
CHUNK_TOKENS = 8192
TPOT_S = 0.02
MOST_PAUSE_S = 60.0
"""Longer ones are a person who has left."""
WARM_UP_S = 1200.0
"""Agents begin all at once, with all of their context new: that is not told."""
FIRST_COME = float("inf")
HEAD = "  ageing    mean     P95     P99    most  longest   busy  requests"
AGEINGS = (FIRST_COME, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.0)


class Turn(msgspec.Struct, frozen=True):
    """One request of a branch: its pause before, new tokens, seconds of its output."""

    pause_s: float
    tokens: int
    output_s: float


class Waiting(msgspec.Struct):
    """A request at the node."""

    agent: int
    number: int
    arrived_s: float
    tokens: int
    left: int
    output_s: float


def turns_of(trace: str, limit: int = 200) -> list[list[Turn]]:
    """Branches of a trace with at least two requests."""
    header, conversations = open_trace(locate(trace))
    found = []
    for conversation in itertools.islice(conversations, limit):
        for branch in conversation.branches:
            turns = [
                Turn(
                    min(request.wait_s, MOST_PAUSE_S),
                    max(1, request.in_tokens - request.keep * header.block_tokens),
                    request.out_tokens * TPOT_S,
                )
                for request in branch.requests
            ]
            if len(turns) > 1:
                found.append(turns)
    return found


def simulate(
    branches: Sequence[Sequence[Turn]], agents: int, ageing: float, *, seed: int, hours: float
) -> tuple[list[tuple[int, float]], float]:
    """(new tokens, seconds to the first token) of each request, and how busy the node was."""
    dice = random.Random(seed)
    streams = [_stream(branches, dice.randrange(1 << 30)) for _ in range(agents)]
    numbers = itertools.count()
    arrivals: list[tuple[float, int, int, Turn]] = []
    for agent, stream in enumerate(streams):
        turn = next(stream)
        heapq.heappush(arrivals, (dice.random() * 60.0, next(numbers), agent, turn))
    here: list[Waiting] = []
    done: list[tuple[int, float]] = []
    now_s = busy_s = 0.0
    while now_s < hours * 3600.0:
        if not here:
            now_s = max(now_s, arrivals[0][0])
        while arrivals and arrivals[0][0] <= now_s:
            at_s, number, agent, turn = heapq.heappop(arrivals)
            here.append(Waiting(agent, number, at_s, turn.tokens, turn.tokens, turn.output_s))
        computed = _chunk(here, ageing)
        now_s += computed * TOKEN_S
        busy_s += computed * TOKEN_S
        for request in [r for r in here if not r.left]:
            here.remove(request)
            if request.arrived_s > WARM_UP_S:
                done.append((request.tokens, now_s - request.arrived_s))
            turn = next(streams[request.agent])
            back_s = now_s + request.output_s + turn.pause_s
            heapq.heappush(arrivals, (back_s, next(numbers), request.agent, turn))
    return done, busy_s / now_s


def _chunk(here: list[Waiting], ageing: float) -> int:
    """Compute one chunk; returns its tokens."""
    if ageing == FIRST_COME:
        here.sort(key=lambda r: r.number)
    else:
        here.sort(key=lambda r: (rank_s(r.left, TOKEN_S, ageing, r.arrived_s), r.number))
    room = CHUNK_TOKENS
    for request in here:
        taken = min(room, request.left)
        request.left -= taken
        room -= taken
        if not room:
            break
    return CHUNK_TOKENS - room


def _stream(branches: Sequence[Sequence[Turn]], seed: int) -> Iterator[Turn]:
    """Branches drawn one after the other, for ever."""
    dice = random.Random(seed)
    while True:
        yield from branches[dice.randrange(len(branches))]


def line(ageing: float, done: list[tuple[int, float]], busy: float) -> str:
    """Mean, P95, P99, most; and the mean of the hundredth of requests with most new tokens."""
    times = sorted(ttft_s for _, ttft_s in done)
    longest = sorted(done)[-max(1, len(done) // 100) :]
    name = "arrival" if ageing == FIRST_COME else f"{ageing:g}"
    return (
        f"{name:>8}  {statistics.fmean(times):6.2f}  {times[len(times) * 95 // 100]:6.2f}  "
        f"{times[len(times) * 99 // 100]:6.2f}  {times[-1]:6.1f}  "
        f"{statistics.fmean(t for _, t in longest):6.2f}  {busy:5.2f}  {len(done):6}"
    )


def main() -> None:
    """Print a table for each number of agents."""
    parser = argparse.ArgumentParser()
    parser.add_argument("trace", nargs="?", default=SAMPLE)
    parser.add_argument("--agents", type=int, nargs="+", default=[30, 45, 60])
    parser.add_argument("--hours", type=float, default=4.0)
    options = parser.parse_args()
    branches = turns_of(options.trace)
    for agents in options.agents:
        sys.stdout.write(f"{agents} agents\n{HEAD}\n")
        for ageing in AGEINGS:
            found = simulate(branches, agents, ageing, seed=1, hours=options.hours)
            sys.stdout.write(line(ageing, *found) + "\n")


if __name__ == "__main__":
    main()
