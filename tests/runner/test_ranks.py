"""What several ranks compute together is, bit for bit, what one computes alone."""

from __future__ import annotations

import mmap
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from evctl.core.errors import ConfigError
from evengine.models.config import ModelConfig
from evengine.ports import Batch, DecodeRow, PrefillChunk
from evengine.ranks import exchange
from evengine.ranks.exchange import Exchange, exchange_bytes
from evengine.runner.model import Model
from evengine.runner.plan import plan_batch
from evengine.runner.ranked import agreed
from evengine.runner.selfcheck import SelfCheck, self_check
from evengine.runner.share import GatherHeads, HeadShare, share_elements, share_of
from tests.runner.test_exact import GREEDY, Pages, chunk, mixed_schedule
from tests.runner.weights import tiny

CASES = [("gqa-4", 2), ("gqa-4", 4), ("latent", 2), ("latent", 3), ("latent", 4), ("latent", 6)]
LONG_S = 60.0


class Ranks:
    """Ranks as threads of this process, which meet at a barrier."""

    def __init__(self, config: ModelConfig, ranks: int) -> None:
        self.shares = [share_of(config, rank, ranks) for rank in range(ranks)]
        self._pool = ThreadPoolExecutor(ranks)
        shared = memoryview(mmap.mmap(-1, exchange_bytes(config)))
        meet = partial(threading.Barrier(ranks).wait, LONG_S)
        self.gathers: list[GatherHeads] = [
            Exchange(shared, share, config.n_heads, lambda: meet() and None).gather
            for share in self.shares
        ]

    def each(self, work) -> list:
        """work(share, gather) of every rank, at once."""
        return list(self._pool.map(work, self.shares, self.gathers))


class RankedPages(Pages):
    """Pages whose rows are spread over ranks."""

    def __init__(
        self, config: ModelConfig, weights: dict, block_tokens: int, seed: int, ranks: int
    ) -> None:
        super().__init__(config, weights, block_tokens, seed)
        self.together = Ranks(config, ranks)
        rows = self.pool.shape[0]

        def model(share: HeadShare, gather: GatherHeads) -> Model:
            width = share_elements(config, self.layout, share)
            pool = torch.randn(rows, config.n_layers, width) * 100
            return Model(config, weights, pool, share, gather)

        self.models = self.together.each(model)

    def run(self, chunks: list[PrefillChunk], rows: list[DecodeRow]) -> torch.Tensor:
        draws = [GREEDY] * (sum(c.sample for c in chunks) + len(rows))
        batch = Batch(chunks=chunks, rows=rows, draws=draws)
        plan = plan_batch(batch, self.layout.block_tokens)
        found = self.together.each(lambda share, _: self.models[share.rank].logits(plan))
        assert all(torch.equal(one, found[0]) for one in found)
        return found[0]

    def rows_of(self, slots: list[int], tokens: int) -> torch.Tensor:
        """Canonical rows: planes outermost, then the ranks' heads side by side."""
        size, layout = self.layout.block_tokens, self.layout
        parts = []
        for model in self.models:
            pool = model._kv_rows.view(
                -1, layout.n_layers, layout.planes, model._width // layout.planes
            )
            parts.append(torch.cat([pool[s * size : (s + 1) * size] for s in slots])[:tokens])
        if self.models[0].config.attention == "latent":
            assert all(torch.equal(part, parts[0]) for part in parts)
            parts = parts[:1]
        return torch.cat(parts, dim=-1).flatten(2)


@pytest.mark.parametrize(("kind", "ranks"), CASES)
def test_any_schedule_gives_the_bits_of_one_rank(
    kind: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, weights = tiny(kind)
    monkeypatch.setattr(exchange, "HALF_BYTES", 100 * 4 * config.attn_out_dim)  # several rounds
    rng = random.Random(ranks)
    block_tokens = rng.choice([4, 16, 64])
    prompts = [
        [rng.randrange(config.vocab_size) for _ in range(rng.choice([3, 40, 300, 530]))]
        for _ in range(3)
    ]
    alone = Pages(config, weights, block_tokens, seed=1)
    ranked = RankedPages(config, weights, block_tokens, 2, ranks)
    slots = [ranked.take(len(tokens)) for tokens in prompts]
    got = mixed_schedule(ranked, prompts, slots, rng)
    for i, tokens in enumerate(prompts):
        own = alone.take(len(tokens))
        logits = alone.run([chunk(tokens, 0, len(tokens), own)], [])[0]
        assert torch.equal(got[i], logits), f"logits of prompt {i} differ"
        expected = alone.rows_of(own, len(tokens))
        assert torch.equal(ranked.rows_of(slots[i], len(tokens)), expected), f"KV of {i} differs"


@pytest.mark.parametrize(("kind", "ranks"), [("gqa-4", 2), ("latent", 4)])
def test_the_self_check_of_every_rank_names_the_bits_of_one(kind: str, ranks: int) -> None:
    config, weights = tiny(kind)
    alone = self_check(config, weights, 16)
    found = Ranks(config, ranks).each(partial(self_check, config, weights, 16))
    check = agreed(alone, found)
    assert check.exact
    assert check.numerics == alone.numerics
    assert f"{ranks} ranks agree" in check.detail


def test_ranks_that_compute_other_bits_are_named_and_get_numerics_of_their_own() -> None:
    alone = SelfCheck(exact=True, numerics="exact/1:aa", detail="fine")
    other = SelfCheck(exact=True, numerics="exact/1:bb", detail="fine too")
    check = agreed(alone, [alone, other])
    assert not check.exact
    assert check.numerics == "inexact/2-ranks:bb"
    assert "rank 1 of 2" in check.detail


def test_heads_divide_or_the_number_of_ranks_is_refused() -> None:
    config, _ = tiny("gqa-4")
    assert [share_of(config, r, 2).q_heads for r in range(2)] == [4, 4]
    with pytest.raises(ConfigError) as raised:
        share_of(config, 0, 3)
    assert raised.value.code == "EV-2011"
    assert "4 KV heads" in raised.value.why
    latent, _ = tiny("latent")
    for ranks in (1, 2, 3, 5, 9):
        shares = [share_of(latent, rank, ranks) for rank in range(ranks)]
        heads = [h for s in shares for h in range(s.q_first, s.q_end)]
        assert heads == list(range(latent.n_heads))
        assert all((s.kv_first, s.kv_end) == (0, 1) for s in shares)
