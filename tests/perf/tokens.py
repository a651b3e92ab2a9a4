"""Tokens a second of the torch runner: `python -m tests.perf.tokens [MODEL...]`.

One thread, exact mode, best of three runs each. Prefill is one prompt of 4,096 tokens (1,024
for SmolLM2) in chunks of 512; decode is one iteration with 256 tokens of context a row. The
columns beside ours are what docs/decisions/003-numerics.md cites for another machine: a shape
to compare, not a mark to beat.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

import torch

from evctl.core.sampling import SamplingParams
from evengine.models.store import ensure_model, load_model_config
from evengine.models.weights import load_weights
from evengine.ports import Batch, DecodeRow, Draw, PrefillChunk
from evengine.runner.executor import TorchExecutor, kv_layout

# prefill seconds (4k, SmolLM2 1k) and decode ms at batch 1, 8, 32, on 2 cores with amx
ELSEWHERE = {
    "random-4l256": (0.57, 1.7, 5.8, 25),
    "random-6l384": (1.32, 3.8, 14.7, 45),
    "random-8l512": (2.8, 8.7, 27, 77),
    "smollm2-135m": (2.1, 80, 223, 383),
}
GREEDY = Draw(sampling=SamplingParams(max_tokens=1), index=0)
CHUNK_TOKENS = 512
CONTEXT_TOKENS = 256
BLOCK_TOKENS = 16


def main() -> None:
    torch.set_num_threads(1)
    names = sys.argv[1:] or [*ELSEWHERE, "random-4l256-latent"]
    print(
        f"{'model':22}{'prefill tok/s':>14}{'s':>8}{'elsewhere':>11}"
        f"{'decode ms b1':>14}{'b8':>8}{'b32':>8}{'elsewhere':>18}{'tok/s b32':>11}"
    )
    for name in names:
        print(measure(name), flush=True)


def measure(name: str) -> str:
    directory = ensure_model(name)
    config = load_model_config(directory)
    layout = kv_layout(config, BLOCK_TOKENS)
    memory = memoryview(bytearray(1_024 * layout.block_bytes))
    executor = TorchExecutor(config, load_weights(directory), memory, BLOCK_TOKENS)
    prompt_tokens = 1_024 if name.startswith("smollm2") else 4_096
    prefill_s = best(lambda: prefill(executor, prompt_tokens))
    decode_ms = [best(lambda rows=rows: decode(executor, rows)) * 1e3 for rows in (1, 8, 32)]
    known = ELSEWHERE.get(name)
    other = f"{known[1]} {known[2]} {known[3]}" if known else "-"
    return (
        f"{name:22}{prompt_tokens / prefill_s:14.0f}{prefill_s:8.2f}"
        f"{known[0] if known else '-':>11}"
        f"{decode_ms[0]:14.1f}{decode_ms[1]:8.1f}{decode_ms[2]:8.1f}{other:>18}"
        f"{32e3 / decode_ms[2]:11.0f}"
    )


def best(run: Callable[[], None]) -> float:
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def prefill(executor: TorchExecutor, tokens: int) -> None:
    rng = random.Random(0)
    slots = list(range(tokens // BLOCK_TOKENS))
    for start in range(0, tokens, CHUNK_TOKENS):
        ids = [rng.randrange(executor.vocab_size) for _ in range(CHUNK_TOKENS)]
        last = start + CHUNK_TOKENS >= tokens
        chunk = PrefillChunk(request_id="", tokens=ids, start=start, slots=slots, sample=last)
        executor.run(Batch(chunks=[chunk], rows=[], draws=[GREEDY] if last else []))


def decode(executor: TorchExecutor, rows: int) -> None:
    blocks = CONTEXT_TOKENS // BLOCK_TOKENS
    batch = [
        DecodeRow(
            request_id="",
            token=5,
            position=CONTEXT_TOKENS - 1,
            slots=list(range(row * blocks, (row + 1) * blocks)),
        )
        for row in range(rows)
    ]
    executor.run(Batch(chunks=[], rows=batch, draws=[GREEDY] * rows))


if __name__ == "__main__":
    main()
