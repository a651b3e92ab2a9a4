"""A control plane's view of the world: the planner's own meter, fed with what it would hear."""

from __future__ import annotations

from evctl.core.costs import Coefficients
from evctl.core.planning import SliceRecord
from evctl.core.workload import attention_pairs
from evctl.policy.planner.meter import DECODE, HANDOVER, PREFILL, Meter

LEAST_REQUESTS = 20


class Watch:
    """An Observer of the world. `slices`: all that have closed."""

    def __init__(self, model: Coefficients, slice_s: float) -> None:
        self.slices: list[SliceRecord] = []
        self._model = model
        self._meter = Meter(slice_s, LEAST_REQUESTS, keep=1)

    def arrived(self, request: str, branch: str, now_s: float) -> None:
        self._pass(now_s)
        self._meter.resumes(("", branch), now_s)
        self._meter.entered(request, now_s)

    def began(self, request: str, uncached: int, cached: int, now_s: float) -> None:
        self._pass(now_s)
        pairs = attention_pairs(uncached, cached)
        service_s = self._model.prefill_s(uncached, pairs, 0.0)
        self._meter.began(request, uncached, cached, 0, service_s, now_s)
        self._meter.iterated(uncached)
        self._meter.moved(request, PREFILL, now_s)

    def sampled(self, request: str, now_s: float) -> None:
        self._pass(now_s)
        self._meter.moved(request, HANDOVER, now_s)

    def decodes(self, request: str, now_s: float) -> None:
        self._pass(now_s)
        self._meter.moved(request, DECODE, now_s)

    def done(self, request: str, branch: str, output: int, now_s: float, *, last: bool) -> None:
        self._pass(now_s)
        self._meter.left(request, now_s)
        self._meter.ended(request)
        self._meter.completed(output)
        if not last:
            self._meter.pauses(("", branch), now_s)

    def _pass(self, now_s: float) -> None:
        if self._meter.pass_to(now_s):
            self.slices.append(self._meter.slices[-1])
