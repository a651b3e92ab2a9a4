"""How long one request keeps a node busy (design, section 4), from Eq. 1 and 2."""

from __future__ import annotations

from evctl.core.costs import Coefficients
from evctl.core.planning import SliceRecord


def prefill_service_s(
    model: Coefficients,
    uncached_tokens: float,
    pairs: float,
    restored_tokens: float,
    tokens_per_iteration: float,
) -> float:
    """t_P(w): seconds of prefill that a request costs its node.

    Of an iteration's fixed cost it bears the share of its new tokens among all of that iteration,
    `tokens_per_iteration` (m); 0 where m is unknown means that it runs alone, in one. pairs: the
    mean of A over requests, which is not A of the mean lengths.
    """
    iterations = uncached_tokens / (tokens_per_iteration or max(1.0, uncached_tokens))
    own_s = model.prefill_s(uncached_tokens, pairs, restored_tokens) - model.c0_s
    return iterations * model.c0_s + own_s


def decode_service_s(
    model: Coefficients, output_tokens: float, accepted_per_iteration: float, batch: float
) -> float:
    """t_D(w, B): seconds that a request decodes on a node whose batch is `batch` all the while.
    An iteration has at least one request in it: a batch below 1 is a node idle at times."""
    iterations = output_tokens / (accepted_per_iteration or 1.0)
    return model.decode_s(max(1.0, batch)) * iterations


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
    """t_D of a slice's mean request."""
    return decode_service_s(model, slice_.output_tokens, slice_.accepted_per_iteration, batch)
