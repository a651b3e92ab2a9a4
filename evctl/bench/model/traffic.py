"""Requests of agents on one real engine, and what it said of each iteration."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import msgspec

from evctl.bench.engines.driver import Driver
from evctl.core.events import FirstToken, IterationSample, PrefillStarted, RequestDone

NODE = "a"
WAVE_S = 5.0


class Mix(msgspec.Struct, frozen=True):
    """Agents that ask again and again, each time with more context, until it is full and they
    begin anew. fresh: median and sigma of the log-normal tokens that a request adds; output: least
    and most tokens of an answer; context_tokens: where a context ends. shared_tokens: that all
    contexts begin with. waves: how many of the agents ask, in turn for WAVE_S each; all, if empty.
    """

    agents: int
    fresh: tuple[float, float]
    output: tuple[int, int]
    context_tokens: int
    shared_tokens: int = 64
    waves: tuple[int, ...] = ()

    def asking(self, since_s: float) -> int:
        """How many ask so long after the start."""
        return self.waves[int(since_s / WAVE_S) % len(self.waves)] if self.waves else self.agents


class Seen(msgspec.Struct, frozen=True):
    """An iteration, and when it was heard of (seconds, monotonic)."""

    time_s: float
    sample: IterationSample


class Alone(msgspec.Struct, frozen=True):
    """A request that had the engine for itself. prefill_s, decode_s: busy seconds."""

    prompt_tokens: int
    uncached_tokens: int
    restored_tokens: int
    output_tokens: int
    prefill_s: float
    decode_s: float


class Agents:
    """What the agents of a mix ask next."""

    def __init__(self, mix: Mix, rng: random.Random, vocab_size: int) -> None:
        self.mix = mix
        self._rng, self._vocab = rng, vocab_size
        self._shared = self.tokens(mix.shared_tokens)
        self._contexts: list[list[int]] = [[] for _ in range(mix.agents)]

    def ask(self, agent: int) -> tuple[list[int], int]:
        """Its next prompt, and how many tokens it wants."""
        mix = self.mix
        fresh = max(4, int(self._rng.lognormvariate(0.0, mix.fresh[1]) * mix.fresh[0]))
        fresh = min(fresh, mix.context_tokens // 2)
        output = self._rng.randint(*mix.output)
        context = self._contexts[agent]
        if not context or len(context) + fresh + output > mix.context_tokens:
            context = list(self._shared)
        self._contexts[agent] = [*context, *self.tokens(fresh)]
        return self._contexts[agent], output

    def answered(self, agent: int, tokens: list[int]) -> None:
        self._contexts[agent] = [*self._contexts[agent], *tokens]

    def tokens(self, count: int) -> list[int]:
        """Random ones."""
        return [self._rng.randrange(self._vocab) for _ in range(count)]


def serve(driver: Driver, agents: Agents, seconds: float) -> list[Seen]:
    """Let the agents ask for so long; every iteration that ended meanwhile."""
    seen: list[Seen] = []
    heard = len(driver.facts)
    asked: dict[int, str] = {}
    begun_s = now_s = time.monotonic()
    while now_s < begun_s + seconds:
        for agent in range(agents.mix.agents):
            if agent in asked and (result := driver.results[asked[agent]]).finish is not None:
                agents.answered(agent, result.tokens)
                del asked[agent]
            if agent not in asked and len(asked) < agents.mix.asking(now_s - begun_s):
                prompt, output = agents.ask(agent)
                asked[agent] = driver.submit(prompt, prefill=NODE, max_tokens=output)
        driver.pump(0.02)
        now_s = time.monotonic()
        seen += [Seen(now_s, fact) for fact in _samples(driver, heard)]
        heard = len(driver.facts)
    driver.whole(asked.values())
    driver.quiet(NODE)
    return seen


def ask_alone(driver: Driver, agents: Agents, requests: int) -> list[Alone]:
    """So many requests of the agents, one after the other."""
    found = []
    for index in range(requests):
        agent = index % agents.mix.agents
        prompt, output = agents.ask(agent)
        begun = len(driver.facts)
        request_id = driver.submit(prompt, prefill=NODE, max_tokens=output)
        (result,) = driver.whole([request_id])
        driver.quiet(NODE)
        agents.answered(agent, result.tokens)
        found.append(_alone(driver, begun, len(prompt), len(result.tokens)))
    return found


def repeat(driver: Driver, agents: Agents, tokens: int, batch: int, times: int) -> list[Seen]:
    """The same work again and again: `batch` requests of as many tokens at once, none of which
    is cached."""
    begun = len(driver.facts)
    for _ in range(times):
        driver.run([agents.tokens(tokens) for _ in range(batch)], prefill=NODE, max_tokens=12)
    driver.quiet(NODE)
    return [Seen(0.0, fact) for fact in _samples(driver, begun)]


def _samples(driver: Driver, begin: int) -> Iterator[IterationSample]:
    for _, fact in driver.facts[begin:]:
        if isinstance(fact, IterationSample):
            yield fact


def _alone(driver: Driver, begun: int, prompt_tokens: int, output_tokens: int) -> Alone:
    """Iterations up to the first token were its prefill, those after it its decode."""
    busy_s = [0.0, 0.0]
    uncached = restored = phase = 0
    for _, fact in driver.facts[begun:]:
        if isinstance(fact, PrefillStarted):
            uncached = fact.uncached_tokens
        elif isinstance(fact, IterationSample):
            busy_s[phase] += fact.busy_s
            restored += 0 if phase else fact.restored_tokens
        elif isinstance(fact, FirstToken):
            phase = 1
        elif isinstance(fact, RequestDone):
            break
    return Alone(prompt_tokens, uncached, restored, output_tokens, busy_s[0], busy_s[1])
