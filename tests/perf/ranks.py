"""Time of one iteration on 1, 2 and 4 ranks, one thread each.

Run from the root of the checkout: python -m tests.perf.ranks
"""

from __future__ import annotations

import time

import torch

from evctl.core.sampling import SamplingParams
from evengine.ports import Batch, DecodeRow, Draw, PrefillChunk
from tests.engine.ranked import Ranked, four_heads_model

ROUNDS = 60
DRAW = Draw(SamplingParams(max_tokens=1), 0)
BATCHES = {
    "decode of 1 row at 100 tokens": Batch(
        chunks=[], rows=[DecodeRow("r", 3, 100, list(range(8)))], draws=[DRAW]
    ),
    "prefill of 256 tokens": Batch(
        chunks=[PrefillChunk("r", list(range(256)), 0, list(range(16)), sample=True)],
        rows=[],
        draws=[DRAW],
    ),
}


def main() -> None:
    torch.set_num_threads(1)
    print("ms an iteration, median and 9th decile; all ranks compute all but attention")
    for ranks in (1, 2, 4):
        ranked = Ranked(four_heads_model(), ranks, wait_s=30.0)
        for name, batch in BATCHES.items():
            times_ms = sorted(timed_ms(ranked, batch) for _ in range(ROUNDS))
            median, tenth = times_ms[ROUNDS // 2], times_ms[ROUNDS * 9 // 10]
            print(f"{ranks} ranks  {name:32} {median:8.2f} {tenth:8.2f}")
        ranked.close()


def timed_ms(ranked: Ranked, batch: Batch) -> float:
    started_s = time.perf_counter()
    ranked.executor.run(batch)
    return (time.perf_counter() - started_s) * 1e3


if __name__ == "__main__":
    main()
