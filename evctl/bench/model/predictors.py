"""What is asked how long an iteration, or a request, takes: our model and two simpler ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from evctl.bench.model.traffic import Alone, Seen
from evctl.core.costs import Coefficients
from evctl.core.events import IterationSample
from evctl.core.workload import attention_pairs
from evctl.policy.costmodel.service import decode_service_s, iteration_s, prefill_service_s


class Predictor(Protocol):
    """Seconds of busy time. prefill_s: of a request's whole prefill, alone on the node."""

    def iteration_s(self, sample: IterationSample) -> float: ...

    def prefill_s(self, request: Alone) -> float: ...

    def decode_s(self, request: Alone) -> float: ...


class Ours:
    """Eq. 1 and 2 with fitted coefficients."""

    def __init__(self, model: Coefficients, chunk_tokens: int) -> None:
        self._model = model
        self._chunk_tokens = chunk_tokens

    def iteration_s(self, sample: IterationSample) -> float:
        return iteration_s(self._model, sample)

    def prefill_s(self, request: Alone) -> float:
        new = request.uncached_tokens
        iterations = -(-new // self._chunk_tokens)
        pairs = attention_pairs(new, request.prompt_tokens - new)
        return prefill_service_s(
            self._model, new, pairs, request.restored_tokens, new / iterations
        )

    def decode_s(self, request: Alone) -> float:
        """The first token is prefill's."""
        context = request.prompt_tokens + request.output_tokens / 2
        return decode_service_s(self._model, request.output_tokens - 1, 1.0, 1.0, context)


class Constant:
    """Every iteration of a kind, and every request's part, takes what the mean one took."""

    def __init__(self, iterations: Sequence[Seen], requests: Sequence[Alone]) -> None:
        prefills = [s.sample.busy_s for s in iterations if s.sample.prefill_tokens]
        decodes = [s.sample.busy_s for s in iterations if not s.sample.prefill_tokens]
        self._iteration_s = (_mean(prefills), _mean(decodes))
        self._prefill_s = _mean([r.prefill_s for r in requests])
        self._decode_s = _mean([r.decode_s for r in requests])

    def iteration_s(self, sample: IterationSample) -> float:
        return self._iteration_s[0 if sample.prefill_tokens else 1]

    def prefill_s(self, request: Alone) -> float:
        del request
        return self._prefill_s

    def decode_s(self, request: Alone) -> float:
        del request
        return self._decode_s


class TotalInput:
    """Prefill by the whole input's length, cached or not, as Arrow's predictor does. A fixed cost
    is granted to it beside the proportional one. It knows nothing of decode: there it is the
    constant one."""

    def __init__(self, iterations: Sequence[Seen], requests: Sequence[Alone]) -> None:
        self._constant = Constant(iterations, requests)
        prefills = [s.sample for s in iterations if s.sample.prefill_tokens]
        self._iteration = _line([_input_tokens(s) for s in prefills], [s.busy_s for s in prefills])
        self._request = _line(
            [float(r.prompt_tokens) for r in requests], [r.prefill_s for r in requests]
        )

    def iteration_s(self, sample: IterationSample) -> float:
        if not sample.prefill_tokens:
            return self._constant.iteration_s(sample)
        fixed_s, token_s = self._iteration
        return fixed_s + token_s * _input_tokens(sample)

    def prefill_s(self, request: Alone) -> float:
        fixed_s, token_s = self._request
        return fixed_s + token_s * request.prompt_tokens

    def decode_s(self, request: Alone) -> float:
        return self._constant.decode_s(request)


def _input_tokens(sample: IterationSample) -> float:
    """Cached and new tokens of a chunk, from its pairs; of several, as of one like their sum."""
    new = float(sample.prefill_tokens)
    return new + max(0.0, (sample.attention_pairs - new * (new + 1) / 2) / new)


def _line(x: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Fixed seconds and seconds a unit, by least relative error."""
    if not x:
        return 0.0, 0.0
    columns = np.column_stack([np.ones(len(x)), np.array(x)]) / np.array(seconds)[:, None]
    fixed_s, each_s = np.linalg.lstsq(columns, np.ones(len(x)), rcond=None)[0]
    return float(fixed_s), float(each_s)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
