"""How long one request keeps a node busy (design, section 4), from Eq. 1 and 2."""

from __future__ import annotations

from evctl.core.costs import Coefficients
from evctl.core.events import IterationSample
from evctl.core.planning import SliceRecord


def iteration_s(model: Coefficients, sample: IterationSample) -> float:
    """What the model says of an iteration. One of both kinds shares their fixed costs: it is
    taken for a prefill with its decodes' own cost on top."""
    rows = sample.decode_requests
    if not sample.prefill_tokens:
        return model.decode_s(rows, sample.attention_pairs)
    added_s = model.decode_s(rows, 0.0) - model.d0_s if rows else 0.0
    return added_s + model.prefill_s(
        sample.prefill_tokens, sample.attention_pairs, sample.restored_tokens
    )


Rates = tuple[float, float, float, float]
"""Seconds a prompt, a new token, a query-key pair, a restored token: t_P is linear in them, so
that sums over a queue are as good as its requests."""


def prefill_rates(model: Coefficients, tokens_per_iteration: float) -> Rates:
    """Of an iteration's fixed cost a prompt bears the share of its new tokens among all of that
    iteration, `tokens_per_iteration` (m); 0 where m is unknown means one of its own."""
    if tokens_per_iteration:
        token_s = model.c1_s + model.c0_s / tokens_per_iteration
        return 0.0, token_s, model.c2_s, model.c3_s
    return model.c0_s, model.c1_s, model.c2_s, model.c3_s


def at_rates(rates: Rates, uncached_tokens: float, pairs: float, restored_tokens: float) -> float:
    """t_P(w). A prompt without new tokens is in no iteration."""
    each_s, token_s, pair_s, restored_s = rates
    return (
        each_s * min(1.0, uncached_tokens)
        + token_s * uncached_tokens
        + pair_s * pairs
        + restored_s * restored_tokens
    )


def prefill_service_s(
    model: Coefficients,
    uncached_tokens: float,
    pairs: float,
    restored_tokens: float,
    tokens_per_iteration: float,
) -> float:
    """t_P(w): seconds of prefill that a request costs its node. pairs: the mean of A over
    requests, which is not A of the mean lengths."""
    rates = prefill_rates(model, tokens_per_iteration)
    return at_rates(rates, uncached_tokens, pairs, restored_tokens)


def decode_service_s(
    model: Coefficients,
    output_tokens: float,
    accepted_per_iteration: float,
    batch: float,
    context_tokens: float | None = None,
) -> float:
    """t_D(w, B): seconds that a request decodes on a node whose batch is `batch` all the while,
    each request of it with `context_tokens` on average (None: as the model was fitted). An
    iteration has at least one request in it: a batch below 1 is a node idle at times."""
    iterations = output_tokens / (accepted_per_iteration or 1.0)
    running = max(1.0, batch)
    context = None if context_tokens is None else running * context_tokens
    return model.decode_s(running, context) * iterations


def slice_prefill_s(model: Coefficients, slice_: SliceRecord) -> float:
    """t_P of a slice's mean request. At least one token of a prompt is always computed."""
    return prefill_service_s(
        model,
        max(1.0, slice_.uncached_tokens),
        slice_.attention_pairs,
        slice_.restored_tokens,
        slice_.tokens_per_iteration,
    )


def slice_decode_s(model: Coefficients, slice_: SliceRecord, batch: float) -> float:
    """t_D of a slice's mean request, which on average has half of its output behind it."""
    context = slice_.uncached_tokens + slice_.cached_tokens + slice_.output_tokens / 2
    accepted = slice_.accepted_per_iteration
    return decode_service_s(model, slice_.output_tokens, accepted, batch, context)
