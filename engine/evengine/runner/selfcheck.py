"""Start-up check that this CPU's kernels give the same bits on every path.

Another CPU may dispatch to kernels whose rounding depends on the batch. Then exactness is not
claimed, and the numerics name (part of every block's key) keeps such KV apart.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec
import torch

from evctl.core.sampling import SamplingParams
from evengine.models.config import ModelConfig
from evengine.ports import Batch, DecodeRow, Draw, PrefillChunk
from evengine.runner.executor import kv_layout
from evengine.runner.model import Model
from evengine.runner.plan import TILE_TOKENS, plan_batch
from evengine.runner.share import GatherHeads, HeadShare, own_heads, share_elements, share_of

CHECK_TOKENS = TILE_TOKENS + 45
CHECK_LAYERS = 2
_GREEDY = Draw(sampling=SamplingParams(max_tokens=1), index=0)


class SelfCheck(msgspec.Struct, frozen=True):
    """exact: all paths agreed. numerics: names the bits that this machine computes."""

    exact: bool
    numerics: str
    detail: str


def self_check(
    config: ModelConfig,
    weights: dict[str, torch.Tensor],
    block_tokens: int,
    share: HeadShare | None = None,
    gather_heads: GatherHeads = own_heads,
) -> SelfCheck:
    """Compare whole prefill, chunked prefill and decode of one sequence, alone and in company,
    over the first CHECK_LAYERS layers of the model itself. share: of one rank; all ranks of a
    node run this together."""
    layout = kv_layout(config, block_tokens)
    blocks = layout.blocks_for(CHECK_TOKENS)
    share = share or share_of(config)
    width = share_elements(config, layout, share)
    pool = torch.zeros(3 * blocks * block_tokens, layout.n_layers, width)
    model = Model(config, weights, pool, share, gather_heads)
    tokens = [(i * 7919 + 11) % config.vocab_size for i in range(CHECK_TOKENS)]
    whole = list(range(blocks))
    pieces = list(range(blocks, 2 * blocks))[::-1]
    company = list(range(2 * blocks, 3 * blocks))

    def run(chunks: list[PrefillChunk], rows: list[DecodeRow]) -> torch.Tensor:
        draws = [_GREEDY] * (sum(c.sample for c in chunks) + len(rows))
        plan = plan_batch(Batch(chunks=chunks, rows=rows, draws=draws), block_tokens)
        return model.logits(plan, layers=min(CHECK_LAYERS, config.n_layers))

    def chunk(start: int, end: int, slots: list[int], sampled: bool = False) -> PrefillChunk:
        return PrefillChunk(
            request_id="", tokens=tokens[start:end], start=start, slots=slots, sample=sampled
        )

    expected = run([chunk(0, CHECK_TOKENS, whole, sampled=True)], [])[0]
    run([chunk(0, 83, pieces), chunk(0, 190, company)], [])
    run([chunk(83, CHECK_TOKENS - 4, pieces)], [])
    last = torch.empty(0)
    for position in range(CHECK_TOKENS - 4, CHECK_TOKENS):
        row = DecodeRow(request_id="", token=tokens[position], position=position, slots=pieces)
        beside = [chunk(190, 230, company)] if position % 2 else []
        last = run(beside, [row])[-1]
    same_kv = _same_kv(pool, whole, pieces, block_tokens)
    exact = same_kv and torch.equal(expected, last)
    bits = blake2b(expected.numpy().tobytes(), digest_size=6).hexdigest()
    kind = "exact" if exact else "inexact"
    detail = (
        "prefill, chunked prefill and decode agree bit for bit"
        if exact
        else f"paths differ: KV {'equal' if same_kv else 'differs'}, largest logit gap "
        f"{float((expected - last).abs().max()):.3g}"
    )
    return SelfCheck(exact=exact, numerics=f"{kind}/1:{bits}", detail=detail)


def _same_kv(pool: torch.Tensor, a: list[int], b: list[int], block_tokens: int) -> bool:
    blocks = pool.view(-1, block_tokens, *pool.shape[1:])
    left = blocks[a].flatten(0, 1)[:CHECK_TOKENS]
    right = blocks[b].flatten(0, 1)[:CHECK_TOKENS]
    return torch.equal(left, right)
