"""Bit equality of the runner over every way to compute the same tokens."""

from __future__ import annotations

import random

import pytest
import torch

from evctl.core.sampling import SamplingParams
from evengine.models.config import ModelConfig
from evengine.ports import Batch, DecodeRow, Draw, PrefillChunk
from evengine.runner import plan
from evengine.runner.executor import kv_layout
from evengine.runner.model import Model
from evengine.runner.plan import plan_batch
from evengine.runner.selfcheck import self_check
from tests.models import reference
from tests.runner.weights import tiny

GREEDY = Draw(sampling=SamplingParams(max_tokens=1), index=0)


class Pages:
    """A model over a pool whose slots are handed out in random order."""

    def __init__(self, config: ModelConfig, weights: dict, block_tokens: int, seed: int) -> None:
        self.layout = kv_layout(config, block_tokens)
        blocks = 4096 // block_tokens
        width = self.layout.planes * self.layout.row_elements
        # stale bytes of earlier requests must not matter
        self.pool = torch.randn(blocks * block_tokens, config.n_layers, width) * 100
        self.model = Model(config, weights, self.pool)
        self.free = list(range(blocks))
        random.Random(seed).shuffle(self.free)

    def take(self, tokens: int) -> list[int]:
        return [self.free.pop() for _ in range(self.layout.blocks_for(tokens))]

    def run(self, chunks: list[PrefillChunk], rows: list[DecodeRow]) -> torch.Tensor:
        draws = [GREEDY] * (sum(c.sample for c in chunks) + len(rows))
        batch = Batch(chunks=chunks, rows=rows, draws=draws)
        return self.model.logits(plan_batch(batch, self.layout.block_tokens))

    def rows_of(self, slots: list[int], tokens: int) -> torch.Tensor:
        size = self.layout.block_tokens
        return torch.cat([self.pool[s * size : (s + 1) * size] for s in slots])[:tokens]


def chunk(tokens: list[int], start: int, end: int, slots: list[int]) -> PrefillChunk:
    sample = end == len(tokens)
    return PrefillChunk(
        request_id="", tokens=tokens[start:end], start=start, slots=slots, sample=sample
    )


@pytest.mark.parametrize("kind", ["gqa", "latent"])
def test_paged_forward_agrees_with_the_naive_model(kind: str) -> None:
    config, weights = tiny(kind)
    rng = random.Random(1)
    for length in (1, 5, 64, 255, 256, 257, 600):
        tokens = [rng.randrange(config.vocab_size) for _ in range(length)]
        pages = Pages(config, weights, 16, seed=length)
        logits = pages.run([chunk(tokens, 0, length, pages.take(length))], [])[0]
        expected = reference.forward(config, weights, tokens)[-1]
        assert torch.allclose(logits, expected, atol=2e-3), (length, kind)
        assert logits.argmax() == expected.argmax()


@pytest.mark.parametrize("kind", ["gqa", "latent"])
@pytest.mark.parametrize("seed", range(4))
def test_any_chunking_company_and_decode_gives_the_same_bits(kind: str, seed: int) -> None:
    config, weights = tiny(kind)
    rng = random.Random(seed)
    block_tokens = rng.choice([4, 16, 64])
    prompts = [
        [rng.randrange(config.vocab_size) for _ in range(rng.choice([3, 40, 250, 300, 530]))]
        for _ in range(4)
    ]
    alone = Pages(config, weights, block_tokens, seed)
    expected = []
    for tokens in prompts:
        slots = alone.take(len(tokens))
        logits = alone.run([chunk(tokens, 0, len(tokens), slots)], [])[0]
        expected.append((logits, alone.rows_of(slots, len(tokens)).clone()))
    mixed = Pages(config, weights, block_tokens, seed + 100)
    slots = [mixed.take(len(tokens)) for tokens in prompts]
    got = mixed_schedule(mixed, prompts, slots, rng)
    for i, (logits, kv) in enumerate(expected):
        assert torch.equal(got[i], logits), f"logits of prompt {i} differ"
        assert torch.equal(mixed.rows_of(slots[i], len(prompts[i])), kv), f"KV of {i} differs"


def mixed_schedule(
    pages: Pages, prompts: list[list[int]], slots: list[list[int]], rng: random.Random
) -> dict[int, torch.Tensor]:
    """All prompts at once, in random chunks, each switching to decode at a random point."""
    done = [0] * len(prompts)
    switch = [rng.randrange(max(1, len(tokens) - 20), len(tokens) + 1) for tokens in prompts]
    last: dict[int, torch.Tensor] = {}
    while any(done[i] < len(tokens) for i, tokens in enumerate(prompts)):
        open_ = [i for i, tokens in enumerate(prompts) if done[i] < len(tokens)]
        picked = rng.sample(open_, rng.randint(1, len(open_)))
        chunks, rows, order = [], [], []
        for i in picked:
            if done[i] < switch[i]:
                end = min(switch[i], done[i] + rng.choice([1, 7, 64, 130]))
                chunks.append(chunk(prompts[i], done[i], end, slots[i]))
                order += [i] if chunks[-1].sample else []
                done[i] = end
        for i in picked:
            if (
                done[i] >= switch[i]
                and done[i] < len(prompts[i])
                and not any(c.slots is slots[i] for c in chunks)
            ):
                token = prompts[i][done[i]]
                rows.append(
                    DecodeRow(request_id="", token=token, position=done[i], slots=slots[i])
                )
                order.append(i)
                done[i] += 1
        if not chunks and not rows:
            continue
        for i, logits in zip(order, pages.run(chunks, rows), strict=True):
            last[i] = logits
    return last


def test_a_decode_batch_over_the_memory_bound_gives_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, weights = tiny("gqa")
    rng = random.Random(3)
    pages = Pages(config, weights, 16, seed=3)
    rows = []
    for length in (700, 20, 300, 513):
        tokens = [rng.randrange(config.vocab_size) for _ in range(length)]
        slots = pages.take(length)
        pages.run([chunk(tokens, 0, length - 1, slots)], [])
        rows.append(DecodeRow(request_id="", token=tokens[-1], position=length - 1, slots=slots))
    together = pages.run([], rows)
    monkeypatch.setattr(plan, "DECODE_SLICE_TOKENS", 512)
    batch = Batch(chunks=[], rows=rows, draws=[GREEDY] * len(rows))
    assert [p.count for p in plan_batch(batch, 16).decodes] == [1, 2, 1]
    assert torch.equal(pages.run([], rows), together)


@pytest.mark.parametrize("kind", ["gqa", "latent"])
def test_self_check_is_exact_here_and_notices_a_batch_dependent_kernel(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, weights = tiny(kind)
    good = self_check(config, weights, 16)
    assert good.exact, good.detail
    assert self_check(config, weights, 4).numerics == good.numerics
    linear = torch.nn.functional.linear

    def rounds_by_batch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return linear(x, w) * (1.0 + (2e-7 if x.shape[0] < 32 else 0.0))

    monkeypatch.setattr(torch.nn.functional, "linear", rounds_by_batch)
    bad = self_check(config, weights, 16)
    assert not bad.exact
    assert bad.numerics.startswith("inexact")
