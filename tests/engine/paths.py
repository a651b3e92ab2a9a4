"""The equality suite: the same prompts over every path, tokens and page checksums compared."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from evctl.core.blocks import KvNamespace, block_keys, root_key
from evctl.core.kv import KvLayout
from tests.engine.driver import Driver

OUTPUT_TOKENS = 20


@dataclass
class PathResult:
    """tokens: greedy output of each prompt. checksums: of each full block of prompt and output
    that has KV, in order. cached: cached tokens of each request."""

    name: str
    tokens: list[list[int]]
    checksums: list[list[int]]
    cached: list[int] = field(default_factory=list)


def assert_same(results: Sequence[PathResult]) -> None:
    """Raise AssertionError that names the path and prompt at the first difference."""
    expected = results[0]
    for result in results[1:]:
        for i, tokens in enumerate(expected.tokens):
            where = f"prompt {i}, {expected.name} against {result.name}"
            assert result.tokens[i] == tokens, f"tokens differ: {where}"
            assert result.checksums[i] == expected.checksums[i], f"KV differs: {where}"


class Paths:
    """Runs prompts on two engines, a and b. Every path has a tenant of its own, so that no
    path can reuse what another computed."""

    def __init__(self, driver: Driver, prompts: list[list[int]]) -> None:
        self.driver = driver
        self.prompts = prompts

    def one_node(self) -> PathResult:
        tokens = self.driver.run(self.prompts, prefill="a", tenant="one", max_tokens=OUTPUT_TOKENS)
        return self._result("one", tokens, "a")

    def disaggregated(self) -> PathResult:
        """Also checks what each node did: b computed no prompt, a sent exactly the KV."""
        driver, layout = self.driver, self._layout()
        before = {name: driver.quiet(name).counters for name in "ab"}
        tokens = driver.run(
            self.prompts, prefill="a", decode="b", tenant="two", max_tokens=OUTPUT_TOKENS
        )
        after = {name: driver.quiet(name).counters for name in "ab"}

        def grown(name: str, counter: str) -> float:
            return after[name].get(counter, 0) - before[name].get(counter, 0)

        prompt_tokens = sum(map(len, self.prompts))
        hello = driver.nodes["a"].hello
        assert hello is not None
        # latent KV has one plane, and each rank gets all of it
        copies = hello.peer.transfer.ranks if layout.planes == 1 else 1
        assert grown("a", "prefill_tokens") == prompt_tokens
        assert grown("b", "prefill_tokens") == 0
        assert grown("a", "decode_tokens") == 0
        assert grown("a", "kv_bytes_sent") == prompt_tokens * layout.token_bytes * copies
        assert grown("a", "push_failed") == 0
        return self._result("two", tokens, "b")

    def shared_prefix(self) -> PathResult:
        """Another request computed the start of each prompt."""
        size = self._layout().block_tokens
        firsts = [[*p[: max(1, 2 * len(p) // 3)], 7, 8, 9] for p in self.prompts]
        self.driver.run(firsts, prefill="b", tenant="prefix", max_tokens=2)
        ids = [
            self.driver.submit(p, prefill="b", tenant="prefix", max_tokens=OUTPUT_TOKENS)
            for p in self.prompts
        ]
        results = self.driver.wait(ids)
        for prompt, result in zip(self.prompts, results, strict=True):
            assert result.cached_tokens >= (2 * len(prompt) // 3) // size * size
        cached = [r.cached_tokens for r in results]
        return self._result("prefix", [r.tokens for r in results], "b", cached)

    def decoded_prefix(self) -> PathResult:
        """Decode on b computed most of each prompt; b then prefills what is left."""
        size = self._layout().block_tokens
        firsts = [p[: max(1, len(p) - 40)] for p in self.prompts]
        for first, prompt in zip(firsts, self.prompts, strict=True):
            forced = tuple(prompt[len(first) :]) or (1,)
            request = self.driver.submit(
                first,
                prefill="a",
                decode="b",
                tenant="decoded",
                max_tokens=len(forced) + 1,
                forced=forced,
            )
            self.driver.wait([request])
        ids = [
            self.driver.submit(p, prefill="b", tenant="decoded", max_tokens=OUTPUT_TOKENS)
            for p in self.prompts
        ]
        results = self.driver.wait(ids)
        for prompt, result in zip(self.prompts, results, strict=True):
            assert result.cached_tokens == (len(prompt) - 1) // size * size
        cached = [r.cached_tokens for r in results]
        return self._result("decoded", [r.tokens for r in results], "b", cached)

    def role_changes(self) -> PathResult:
        """a prefills for b, then b for a, then a for b, each change with work in flight."""
        driver = self.driver
        order = list(range(len(self.prompts)))
        random.Random(5).shuffle(order)
        ids: dict[int, str] = {}
        stages = [("a", "b"), ("b", "a"), ("a", "b")]
        for number, (prefill, decode) in enumerate(stages):
            if number:
                flying = [i for i in ids.values() if driver.results[i].finish is None]
                assert flying, "nothing was in flight at a role change"
            batch = order[number :: len(stages)]
            for i in batch:
                ids[i] = driver.submit(
                    self.prompts[i],
                    prefill=prefill,
                    decode=decode,
                    tenant="roles",
                    max_tokens=OUTPUT_TOKENS,
                )
            some = [driver.results[ids[i]] for i in batch]
            driver.until(lambda some=some: any(r.tokens for r in some), 60.0, "a first token")
        results = driver.wait([ids[i] for i in range(len(self.prompts))])
        return self._result("roles", [r.tokens for r in results], "ab")

    def _layout(self) -> KvLayout:
        hello = self.driver.nodes["a"].hello
        assert hello is not None
        return hello.layout

    def _result(
        self, tenant: str, tokens: list[list[int]], nodes: str, cached: list[int] | None = None
    ) -> PathResult:
        """Attach the checksums, read from whichever node of `nodes` holds the output's KV."""
        hello = self.driver.nodes["a"].hello
        assert hello is not None
        held: dict[bytes, set[int]] = {}
        for name in nodes:
            for key, checksum in self.driver.inventory(name).items():
                held.setdefault(key, set()).add(checksum)
        root = root_key(self.driver.kv_secret, KvNamespace(tenant, hello.weights_hash))
        checksums = []
        for prompt, output in zip(self.prompts, tokens, strict=True):
            computed = prompt + output[:-1]
            keys = block_keys(self.driver.kv_secret, root, computed, hello.layout.block_tokens)
            found = [held.get(key, set()) for key in keys]
            assert all(len(one) == 1 for one in found), f"{tenant}: copies missing or different"
            checksums.append([next(iter(one)) for one in found])
        return PathResult(tenant, tokens, checksums, cached or [])
