"""Random cancels, aborts and duplicate ids leave nothing behind."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from evctl.wire.messages import RecallRequest
from tests.engine.driver import Driver

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

REQUESTS = 1_000


def test_a_thousand_random_cancels(tmp_path: Path, prepared_model) -> None:
    """Mixed load on both nodes in both roles; every request is cancelled at a random moment,
    on one node or both, some twice, some under an id that is in use."""
    rng = random.Random(11)
    with Driver(
        tmp_path, prepared_model("random-4l256"), l1_blocks=300, l2_blocks=100, block_tokens=16
    ) as driver:
        driver.settle()
        before = {name: driver.quiet(name).load.l1_used_blocks for name in "ab"}
        stems = [[rng.randrange(256) for _ in range(300)] for _ in range(3)]
        flying: list[str] = []
        duplicates = 0
        for number in range(REQUESTS):
            prefill, decode = rng.choice(["aa", "ab", "ba", "bb"])
            if flying and rng.random() < 0.1:
                request_id = rng.choice(flying)
                driver.results[request_id].shared_id = True
                duplicates += 1
            else:
                request_id = f"c{number}"
                flying.append(request_id)
            shared = rng.choice(stems)[: rng.choice([0, 40, 200, 300])]
            prompt = shared + [rng.randrange(256) for _ in range(rng.choice([1, 20, 90, 400]))]
            driver.submit(
                prompt,
                prefill=prefill,
                decode=decode,
                request_id=request_id,
                tenant=rng.choice(["t", "u"]),
                max_tokens=rng.choice([1, 5, 60]),
                temperature=rng.choice([0.0, 1.0]),
            )
            while len(flying) > rng.choice([2, 6, 12, 30]):
                victim = flying.pop(rng.randrange(len(flying)))
                driver.cancel(victim, *rng.choice([["a"], ["b"], ["a", "b"], ["b", "a", "a"]]))
            driver.pump(rng.choice([0.0, 0.01, 0.03, 0.1]))
        for victim in flying:
            driver.cancel(victim)
        assert duplicates > 50
        _cancel_while_handing_over(driver)
        for name in "ab":
            after = driver.quiet(name)
            assert after.problems == ()
            assert after.load.l1_used_blocks == before[name]
            print(name, {k: v for k, v in after.counters.items() if "wire" not in k})
        seen = {key for name in "ab" for key in driver.inspect(name).counters}
        for stage in ("waiting", "prefill", "handing_over", "decode", "arrival", "unknown"):
            assert f"cancelled_in_{stage}" in seen or f"cancelled_{stage}" in seen, stage
        finished = [r for r in driver.results.values() if r.finish]
        assert any(r.finish == "cancelled" for r in finished)
        assert any(r.finish == "length" for r in finished)
        assert all(r.finish != "error" for r in finished), "a cancel broke another request"
        tokens = driver.run([[1, 2, 3]], prefill="a", decode="b", max_tokens=3)
        assert tokens == driver.run([[1, 2, 3]], prefill="b", decode="a", max_tokens=3)


def _cancel_while_handing_over(driver: Driver) -> None:
    """Rarely met by chance: the decode node stands still while it should take a request over."""
    driver.quiet("a")
    stopped = driver.nodes["b"].pid
    os.kill(stopped, signal.SIGSTOP)
    try:
        late = driver.submit([7, 8, 9] * 30, prefill="a", decode="b", max_tokens=20)
        driver.until(lambda: bool(driver.results[late].tokens), 30.0, "the first token")
        driver.cancel(late, "a")
        driver.until(lambda: driver.results[late].finish == "cancelled", 30.0, "its end")
    finally:
        os.kill(stopped, signal.SIGCONT)


def test_a_recall_takes_back_only_what_has_not_begun(tmp_path: Path, prepared_model) -> None:
    """What a role change asks of a node: queued requests come back whole, running ones stay."""
    limits = {"max_running": 2}
    with Driver(
        tmp_path, prepared_model("random-4l256"), names=("a",), l1_blocks=200, limits=limits
    ) as driver:
        ids = [driver.submit([i, 2, 3] * 20, max_tokens=40) for i in range(6)]
        driver.until(lambda: bool(driver.results[ids[0]].tokens), 30.0, "the first token")
        for request_id in [*ids, "unknown"]:
            driver.send("a", RecallRequest(request_id))

        def answers() -> dict[str, str]:
            kinds = ("Recalled", "RecallDenied")
            return {
                fact.request_id: type(fact).__name__
                for _, fact in driver.facts
                if type(fact).__name__ in kinds
            }

        driver.until(lambda: len(answers()) == 7, 30.0, "an answer for each")
        assert answers() == {
            **dict.fromkeys(ids[:2], "RecallDenied"),
            **dict.fromkeys(ids[2:], "Recalled"),
            "unknown": "RecallDenied",
        }
        finished = driver.wait(ids[:2])
        assert [r.finish for r in finished] == ["length", "length"]
        assert all(not driver.results[i].tokens and not driver.results[i].finish for i in ids[2:])
        again = driver.submit([2, 2, 3] * 20, request_id=ids[2], max_tokens=3)
        assert driver.wait([again])[0].finish == "length"
        assert driver.quiet("a").problems == ()
