"""Learns each node's execution-time model from the iterations that pass the writer.

The windows fill on the writer's loop, the fit runs in a thread, and its result goes back in as an
event. Nothing here decides anything: that is policy/costmodel.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec

from evctl.control.kept_models import Identity, KeptModels, fault_of, identity_of
from evctl.core.costs import TERMS, Coefficients, finite
from evctl.core.effects import WarmUp
from evctl.core.events import CoefficientsFitted, Event, FromNode, IterationSample, NodeJoined
from evctl.core.split import Phase
from evctl.core.times_status import IterationError, NodeTimes
from evctl.policy.costmodel.borrowing import borrow
from evctl.policy.costmodel.calibration import CalibrationLimits, NodeCalibration
from evctl.policy.costmodel.fit import Fitted, Half, ModelShape, NotYet, fit
from evctl.policy.costmodel.service import iteration_s
from evctl.policy.plausible import can_be
from evctl.policy.state import NodeRecord, StepResult
from evctl.wire.messages import Hello

BORROWED: Final = "borrowed"
Note = Callable[[str, str, str], None]
"""(level, what, node): a line for the event log."""


class _Node:
    """What is known of one node beside the reducer's record."""

    def __init__(self, limits: CalibrationLimits, shape: ModelShape) -> None:
        self.calibration = NodeCalibration(limits)
        self.shape = shape
        self.identity: Identity | None = None
        self.own: dict[Phase, Coefficients] = {}
        """What was learned of its own work, or kept of that of its like, by phase."""
        self.lenders: dict[Phase, str] = {}
        """Whose terms stand in for the others."""
        self.warming = False
        self.waits_for = ""
        self.fitting = False
        self.errors: dict[str, list[float]] = {}
        """Of iterations by kind, since the model is in force: how many, sum of relative errors."""

    def compare(self, sample: IterationSample) -> None:
        """Predicted beside measured."""
        model = self.calibration.coefficients
        if model is None or sample.busy_s <= 0.0:
            return
        sums = self.errors.setdefault(_kind(sample), [0.0, 0.0])
        sums[0] += 1.0
        sums[1] += abs(iteration_s(model, sample) / sample.busy_s - 1.0)


class Calibration:
    """An observer of the writer. Made and called on one asyncio loop.

    hello: what a node that is in said of itself. feed: into the writer.
    """

    def __init__(
        self,
        limits: CalibrationLimits,
        *,
        context_term: bool,
        kept: KeptModels,
        hello: Callable[[str], Hello | None],
        feed: Callable[[Event], None],
        note: Note,
    ) -> None:
        self._limits = limits
        self._context_term = context_term
        self._kept = kept
        self._hello = hello
        self._feed = feed
        self._note = note
        self._nodes: dict[str, _Node] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def observe(self, now_s: float, event: Event, result: StepResult) -> None:
        """An observer of the writer."""
        if isinstance(event, FromNode):
            if isinstance(event.fact, IterationSample):
                self._follow_warm_up(result)
                self._sample(now_s, event.node, event.fact)
        elif isinstance(event, NodeJoined):
            self._joined(event.node)
            self._follow_warm_up(result)
            self._share(event.node)
        elif isinstance(event, CoefficientsFitted) and event.node in self._nodes:
            self._follow_warm_up(result)
            self._learned(self._nodes[event.node], event)

    def status(self, record: NodeRecord) -> NodeTimes:
        """Of a node, fitted or not."""
        node = self._nodes.get(record.name)
        model = record.coefficients
        return NodeTimes(
            node=record.name,
            source=record.model_source,
            warming=record.warming,
            waits_for=node.waits_for if node else "",
            tokens_per_iteration=record.tokens_per_iteration,
            restored_share=record.restored_share,
            coefficients=_terms(model) if model else {},
            errors=_errors(model) if model else {},
            unidentified=model.unidentified if model else (),
            windows=model.windows if model else (0, 0),
            residual=model.residual if model and any(model.windows) else None,
            borrowed={_name(phase): lender for phase, lender in node.lenders.items()}
            if node
            else {},
            off=node.calibration.off if node else None,
            iterations=tuple(
                IterationError(kind, int(count), total)
                for kind, (count, total) in sorted(node.errors.items())
            )
            if node
            else (),
        )

    async def close(self) -> None:
        """No fit goes on after this."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------ inside

    def _joined(self, name: str) -> None:
        """A node that is what it was goes on with its windows; another one begins anew, with what
        was kept of its like."""
        hello = self._hello(name)
        if hello is None:
            return
        identity = identity_of(hello, context_term=self._context_term)
        known = self._nodes.get(name)
        if known is not None and known.identity == identity:
            return
        shape = ModelShape(
            experts=hello.experts,
            experts_per_token=hello.experts_per_token,
            forwarded_tokens=hello.forwarded_tokens,
            context_term=self._context_term,
        )
        node = self._nodes[name] = _Node(self._limits, shape)
        node.identity = identity
        model = self._kept.read(identity) if identity else None
        if model is not None and _fits(model, shape):
            node.own = dict.fromkeys(Phase, model)
            self._feed(CoefficientsFitted(name, model, "kept"))
        elif known is not None and known.calibration.coefficients is not None:
            node.calibration.doubt(known.calibration.coefficients)
            what = "it is another engine or machine than its times were learned on; they are"
            self._note("warn", f"{what} learned anew from the work that comes", name)

    def _sample(self, now_s: float, name: str, sample: IterationSample) -> None:
        node = self._nodes.get(name)
        if node is None or not can_be(sample):
            return
        node.compare(sample)
        word = node.calibration.observe(now_s, sample)
        if word == "drift":
            off = node.calibration.off or 0.0
            what = f"its times drifted: predicted {off:+.0%} for long; they are learned anew"
            self._note("warn", what, name)
        elif word == "fit" and not node.fitting:
            node.fitting = True
            task = asyncio.get_running_loop().create_task(self._fit(name, node))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _fit(self, name: str, node: _Node) -> None:
        rows = node.calibration.rows
        try:
            found = await asyncio.to_thread(fit, rows, node.shape, node.calibration.coefficients)
            if self._nodes.get(name) is not node:
                return  # another engine took its place meanwhile
            if isinstance(found, Fitted) and (why := fault_of(found.coefficients)):
                node.waits_for = f"the fit cannot be: {why}"
                return
            if isinstance(found, Fitted):
                self._take(name, node, found)
            else:
                self._put_off(node, found)
            self._share(name)
            if isinstance(found, Fitted | Half):
                await self._keep(name, node)
        except Exception as error:
            node.waits_for = f"the fit failed: {error}"
            self._note("fail", f"EV-9004: {node.waits_for}", name)
        finally:
            node.fitting = False

    def _take(self, name: str, node: _Node, found: Fitted) -> None:
        """A fit is in force at once; what it kept of another node stays borrowed. So does what it
        kept of the engine that was here before: it names itself as the lender."""
        reports = zip(Phase, (found.prefill, found.decode), strict=True)
        now = [phase for phase, report in reports if report is not None]
        lenders = {phase: lender for phase, lender in node.lenders.items() if phase not in now}
        own = {**node.own, **dict.fromkeys(now, found.coefficients)}
        lenders |= {phase: name for phase in Phase if phase not in own and phase not in lenders}
        node.lenders = lenders
        source = BORROWED if lenders else "fitted"
        self._feed(CoefficientsFitted(name, found.coefficients, source))
        node.own = own

    @staticmethod
    def _put_off(node: _Node, found: NotYet) -> None:
        """Half a model is in force nowhere, but others may borrow it, or lend what it lacks."""
        node.waits_for = found.why
        if isinstance(found, Half):
            node.own[found.phase] = found.coefficients

    @staticmethod
    def _learned(node: _Node, event: CoefficientsFitted) -> None:
        """Whoever fed it: the reducer predicts by it from now on."""
        if event.source != BORROWED:
            node.own, node.lenders = dict.fromkeys(Phase, event.coefficients), {}
        node.calibration.adopt(event.coefficients, frozenset(node.lenders))
        node.errors, node.waits_for = {}, ""

    def _share(self, name: str) -> None:
        """What is known of a node may complete its like, and what of them, it. One in warm-up
        does not borrow: it is about to learn both phases."""
        one = self._nodes.get(name)
        if one is None or one.identity is None:
            return
        kind = one.identity, one.shape
        like = {n: node for n, node in self._nodes.items() if (node.identity, node.shape) == kind}
        known = {n: node.own for n, node in like.items()}
        for other, node in sorted(like.items()):
            present = node.calibration.coefficients
            drifted = node.calibration.open and present is not None and bool(node.own)
            if node.warming or drifted:
                continue  # its own windows are about to tell
            loan = borrow(other, known, node.lenders)
            if loan is None or _same(loan.coefficients, present) or fault_of(loan.coefficients):
                continue
            node.lenders = loan.lenders
            self._feed(CoefficientsFitted(other, loan.coefficients, BORROWED))

    async def _keep(self, name: str, node: _Node) -> None:
        """For a restart: what is in force now that something was learned. A loan is measured too,
        on nodes that share this one's file; what an engine that was here before left was not."""
        model = node.calibration.coefficients
        if node.identity is None or model is None or name in node.lenders.values():
            return
        why = await asyncio.to_thread(self._kept.write, node.identity, model, time.time())
        if why:
            self._note("warn", f"its model cannot be kept for a restart: {why}", name)

    def _follow_warm_up(self, result: StepResult) -> None:
        for effect in result.effects:
            if isinstance(effect, WarmUp) and effect.node in self._nodes:
                self._nodes[effect.node].warming = effect.on


def _fits(model: Coefficients, shape: ModelShape) -> bool:
    told = (shape.experts, shape.experts_per_token, shape.forwarded_tokens)
    return told == (model.experts, model.experts_per_token, model.forwarded_tokens)


def _same(one: Coefficients, other: Coefficients | None) -> bool:
    """How far off it was where it was fitted makes no other model."""
    return other is not None and one == msgspec.structs.replace(other, residual=one.residual)


def _terms(model: Coefficients) -> dict[str, float]:
    return {term: getattr(model, f"{term}_s") for term in TERMS}


def _errors(model: Coefficients) -> dict[str, float | None]:
    return {term: finite(error) for term, error in zip(TERMS, model.errors, strict=False)}


def _name(phase: Phase) -> str:
    return "prefill" if phase is Phase.PREFILL else "decode"


def _kind(sample: IterationSample) -> str:
    if not sample.prefill_tokens:
        return "decode"
    return "mixed" if sample.decode_requests else "prefill"


def calibration_limits(warm_up_s: float, *, drift: bool) -> CalibrationLimits:
    """As a cluster is configured. Without warm-up the fit waits for the work that comes."""
    limits = CalibrationLimits(drift=drift)
    return msgspec.structs.replace(limits, warm_up_s=warm_up_s or limits.warm_up_s)
