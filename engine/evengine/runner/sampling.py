"""Choice of the next token. Every draw depends only on (seed, index of the draw), so a request
continues the same wherever it runs."""

from __future__ import annotations

from hashlib import blake2b

import torch

from evctl.core.sampling import TokenLogprob
from evengine.ports import Draw, Sampled


def sample(logits: torch.Tensor, draws: list[Draw]) -> Sampled:
    """Choose one token per row of `logits` [rows, vocab], as draws[row] says."""
    greedy = logits.argmax(dim=-1).tolist() if len(draws) else []
    ids: list[int] = []
    logprobs: list[TokenLogprob | None] = []
    for row, draw in enumerate(draws):
        params = draw.sampling
        if draw.index < len(params.forced):
            token = params.forced[draw.index]
        elif params.temperature == 0.0:
            token = greedy[row]
        else:
            token = _draw(logits[row], draw)
        ids.append(token)
        logprobs.append(
            None if params.logprobs is None else _logprob(logits[row], token, params.logprobs)
        )
    return Sampled(token_ids=ids, logprobs=logprobs)


def uniform(seed: int, index: int) -> float:
    """The index-th number in [0, 1) of the stream that `seed` names."""
    name = seed.to_bytes(8, "little", signed=True) + index.to_bytes(8, "little")
    word = int.from_bytes(blake2b(name, digest_size=8).digest(), "little")
    return (word >> 11) * 2.0**-53


def _draw(logits: torch.Tensor, draw: Draw) -> int:
    """Temperature, then nucleus: the smallest set of likeliest tokens that holds top_p."""
    params = draw.sampling
    if params.seed is None:
        raise ValueError("a sampled request has no seed; it gets one when it is accepted")
    # From the largest down, so that a tiny temperature makes the others -inf and nothing NaN.
    scaled = (logits.double() - logits.max()) / params.temperature
    probability, order = torch.softmax(scaled, dim=-1).sort(descending=True, stable=True)
    cumulative = probability.cumsum(dim=-1)
    kept = int((cumulative - probability < params.top_p).sum())
    target = uniform(params.seed, draw.index) * float(cumulative[kept - 1])
    position = int(torch.searchsorted(cumulative[:kept], target, right=True))
    return int(order[min(position, kept - 1)])


def _logprob(logits: torch.Tensor, token: int, alternatives: int) -> TokenLogprob:
    scores = torch.log_softmax(logits.double(), dim=-1)
    best = scores.topk(min(alternatives, len(scores)))
    top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return TokenLogprob(token_id=token, logprob=float(scores[token]), top=top)
