"""Transfers that lie, peers that die or stop: never a wrong token, never a lost request."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from evengine.transfer.faulty import FaultKind
from tests.engine.driver import Driver

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

CAUGHT_BY_CHECKSUM = {FaultKind.CORRUPT, FaultKind.SWAPPED, FaultKind.OTHER_LIFE}
OF_WRITES = [kind for kind in FaultKind if kind is not FaultKind.WRONG_GENERATION]
LIMITS = {"chunk_tokens": 64, "arrival": {"quarantine_s": 2.0}}
PROMPT_TOKENS = 230
BOTH_BACKENDS = pytest.mark.parametrize(
    "backend", ["shm", pytest.param("mooncake", marks=pytest.mark.netns)]
)


def prompts(count: int, tokens: int = PROMPT_TOKENS) -> list[list[int]]:
    rng = random.Random(9)
    return [[rng.randrange(256) for _ in range(tokens)] for _ in range(count)]


@pytest.mark.parametrize("kind", OF_WRITES, ids=lambda kind: kind.value)
def test_a_transfer_that_misbehaves(tmp_path: Path, prepared_model, kind: FaultKind) -> None:
    """The faulty write is the second of the first request: blocks in its middle."""
    entries = {"a": ["-m", "tests.engine.faulty_engine", "--fault", kind.value]}
    with Driver(
        tmp_path, prepared_model("random-4l256"), entries=entries, l1_blocks=200, limits=LIMITS
    ) as driver:
        driver.settle()
        asked = prompts(3)
        expected = driver.run(asked, prefill="b", tenant="clean", max_tokens=20)
        got = [
            driver.run([p], prefill="a", decode="b", tenant="x", max_tokens=20)[0] for p in asked
        ]
        assert got == expected
        counters = driver.quiet("a").counters
        if kind in CAUGHT_BY_CHECKSUM:
            assert counters["kv_blocks_bad_checksum"] >= 1
            assert counters.get("push_failed", 0) == 0
        else:
            assert counters.get("push_failed", 0) == (kind is not FaultKind.SLOW)
        for name in "ab":
            assert driver.quiet(name).problems == ()


@BOTH_BACKENDS
def test_a_peer_that_dies_during_a_push(tmp_path: Path, prepared_model, backend: str) -> None:
    """Its requests are decoded where they were prefilled; its successor starts afresh."""
    with Driver(
        tmp_path, prepared_model("random-6l384"), transfer=backend, l1_blocks=600, limits=LIMITS
    ) as driver:
        driver.settle()
        asked = prompts(6, 700)
        expected = driver.run(asked, prefill="a", tenant="clean", max_tokens=12)
        ids = [driver.submit(p, prefill="a", decode="b", tenant="x", max_tokens=12) for p in asked]
        first = [driver.results[i] for i in ids]
        driver.until(lambda: any(r.tokens for r in first), 60.0, "a first token")
        os.kill(driver.nodes["b"].pid, signal.SIGKILL)
        driver.announce(without=["b"])
        # what b had taken over died with it; all else must be right
        driver.until(lambda: sum(r.finish is not None for r in first) >= 5, 60.0, "the survivors")
        for result, tokens in zip(first, expected, strict=True):
            if result.finish:
                assert result.tokens == tokens
            else:
                assert result.tokens == tokens[: len(result.tokens)]
        driver.restart("b")
        driver.settle()
        again = driver.run(asked[:2], prefill="a", decode="b", tenant="y", max_tokens=12)
        assert again == expected[:2]
        assert driver.quiet("b").problems == ()


@BOTH_BACKENDS
def test_a_stopped_peer_costs_time_only_for_its_own_requests(
    tmp_path: Path, prepared_model, backend: str
) -> None:
    """b is stopped in the middle of a push. No turn of a's loop spends 500 ms (five times the
    promise) outside the model, a request on a alone goes on, and the one for b ends by a's own
    deadline, right."""
    limits = {**LIMITS, "push": {"answer_s": 2.0, "reserve_s": 2.0, "transfer_s": 2.0}}
    with Driver(
        tmp_path, prepared_model("random-6l384"), transfer=backend, l1_blocks=900, limits=limits
    ) as driver:
        driver.settle()
        asked = prompts(1, 3_000)
        expected = driver.run(asked, prefill="a", tenant="clean", max_tokens=12)
        alone = driver.submit([5, 6, 7], prefill="a", tenant="alone", max_tokens=1_500)
        pushed = driver.submit(asked[0], prefill="a", decode="b", tenant="x", max_tokens=12)
        sent = driver.inspect("a").counters.get("kv_bytes_sent", 0)
        driver.until(
            lambda: driver.inspect("a").counters.get("kv_bytes_sent", 0) > sent, 20.0, "a push"
        )
        os.kill(driver.nodes["b"].pid, signal.SIGSTOP)
        try:
            gaps, last, seen = [], time.monotonic(), 0
            result = driver.results[alone]
            while driver.results[pushed].finish is None:
                driver.pump(0.005)
                if len(result.tokens) > seen:
                    now = time.monotonic()
                    gaps.append(now - last)
                    last, seen = now, len(result.tokens)
        finally:
            os.kill(driver.nodes["b"].pid, signal.SIGCONT)
        assert driver.results[pushed].tokens == expected[0]
        overhead_ms = driver.inspect("a").counters["turn_overhead_max_ms"]
        print(
            f"longest turn outside the model: {overhead_ms:.1f} ms; longest pause between two "
            f"tokens of the other request, prefill chunks included: {max(gaps) * 1e3:.0f} ms"
        )
        assert overhead_ms < 500
        assert len(gaps) > 10
        driver.cancel(alone)
        driver.settle()  # b answers again, so a trusts it again
        for name in "ab":
            assert driver.quiet(name).problems == ()
