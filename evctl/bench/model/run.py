"""`evctl bench model`, without the command line."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from evctl.bench.engines.driver import ENTRY, Driver
from evctl.bench.engines.models import Model, fetch
from evctl.bench.measurement import Row, machine
from evctl.bench.model.predictors import Constant, Ours, TotalInput
from evctl.bench.model.report import (
    Compared,
    ModelMeasurement,
    coefficient_rows,
    floor_of,
    iterations_off,
    requests_off,
)
from evctl.bench.model.traffic import (
    NODE,
    Agents,
    Alone,
    Mix,
    Seen,
    ask_alone,
    repeat,
    serve,
)
from evctl.core.costs import TERMS, Coefficients, finite
from evctl.policy.costmodel.fit import ModelShape, NotYet, fit
from evctl.policy.costmodel.windows import Windows

CHUNK_TOKENS = 256
BLOCK_TOKENS = 16
REPEATED_TOKENS, REPEATED_BATCH = 256, 8
WARM = Mix(16, (90.0, 1.2), (8, 48), 2400, waves=(4, 10, 16, 2, 7))
HELD_OUT = Mix(13, (40.0, 1.0), (24, 80), 3400, waves=(13, 5, 9, 3))
"""Longer contexts, fewer new tokens and more output, and another number of agents."""
Told = Callable[[str], None]


class Plan(msgspec.Struct, frozen=True):
    """warm_up_s, held_out_s: of traffic. requests: alone, after each. repeats: of the same work.
    context_term: fit d3 beside the paper's terms. windows of window_s."""

    model: str = "random-6l384"
    warm_up_s: float = 120.0
    held_out_s: float = 60.0
    requests: int = 24
    repeats: int = 8
    window_s: float = 5.0
    context_term: bool = True
    l1_tokens: int = 8_192
    entry: tuple[str, ...] = ENTRY

    def quick(self) -> Plan:
        """Seconds instead of minutes: it shows that everything works, and little more."""
        return msgspec.structs.replace(
            self, warm_up_s=16.0, held_out_s=6.0, requests=4, repeats=2, window_s=1.0
        )


class Heard(msgspec.Struct, frozen=True):
    """All that was measured."""

    warm: list[Seen]
    warm_alone: list[Alone]
    held: list[Seen]
    held_alone: list[Alone]
    same: list[Seen]
    pinned: bool


def measure(plan: Plan, told: Told = lambda _: None) -> ModelMeasurement:
    """Run it all. Raises EvctlError."""
    began_s, load = time.monotonic(), os.getloadavg()[0]
    heard = listen(plan, fetch(plan.model), told)
    rows, model, why_not = judged(plan, heard)
    where = "pinned to a processor" if heard.pinned else "not pinned"
    context = "with" if plan.context_term else "without"
    return ModelMeasurement(
        subject="model",
        peer="best other",
        input=f"{plan.model}, {plan.warm_up_s:.0f} s of warm-up, {plan.held_out_s:.0f} s of"
        f" another mix, CPU time of the iteration's thread, {where}, {context} context term",
        repeats=1,
        wall_s=round(time.monotonic() - began_s, 1),
        load=(round(load, 2), round(os.getloadavg()[0], 2)),
        machine=machine(),
        rows=rows,
        coefficients={t: getattr(model, f"{t}_s") for t in TERMS} if model else {},
        errors={t: finite(e) for t, e in zip(TERMS, model.errors, strict=True)} if model else {},
        why_not=why_not,
    )


def listen(plan: Plan, model: Model, told: Told) -> Heard:
    """Start an engine and have it work."""
    options: dict[str, Any] = {
        "block_tokens": BLOCK_TOKENS,
        "l1_blocks": plan.l1_tokens // BLOCK_TOKENS,
        "l2_blocks": 4 * plan.l1_tokens // BLOCK_TOKENS,
        "limits": {"chunk_tokens": CHUNK_TOKENS, "max_running": 32},
    }
    with (
        tempfile.TemporaryDirectory(prefix="evctl-bench-") as folder,
        Driver(Path(folder), model.folder, (NODE,), entry=plan.entry, **options) as driver,
    ):
        pinned = _pin(driver.nodes[NODE].pid)
        driver.warm_up(NODE, on=True)
        told(f"warm-up, {plan.warm_up_s:.0f} s")
        agents = Agents(WARM, random.Random(1), model.vocab_size)
        warm = serve(driver, agents, plan.warm_up_s)
        warm_alone = ask_alone(driver, agents, plan.requests)
        told(f"another mix, {plan.held_out_s:.0f} s")
        others = Agents(HELD_OUT, random.Random(2), model.vocab_size)
        held = serve(driver, others, plan.held_out_s)
        held_alone = ask_alone(driver, others, plan.requests)
        told(f"the same work {plan.repeats} times")
        same = repeat(driver, others, REPEATED_TOKENS, REPEATED_BATCH, plan.repeats)
    return Heard(warm, warm_alone, held, held_alone, same, pinned)


def judged(plan: Plan, heard: Heard) -> tuple[list[Row], Coefficients | None, str]:
    """Rows, and the model that was fitted or why there is none."""
    windows = Windows(plan.window_s)
    for seen in heard.warm:
        windows.observe(seen.time_s, seen.sample)
    windows.close()
    found = fit(tuple(windows.closed), ModelShape(context_term=plan.context_term))
    if isinstance(found, NotYet):
        return (
            [Row(name="models fitted", value=0, unit="models", goal="1", ok=False)],
            None,
            (found.why),
        )
    model = found.coefficients
    compared = Compared(
        Ours(model, CHUNK_TOKENS),
        {
            "constant": Constant(heard.warm, heard.warm_alone),
            "total input length": TotalInput(heard.warm, heard.warm_alone),
        },
    )
    prefills, decodes = floor_of(heard.same, REPEATED_TOKENS, REPEATED_BATCH)
    rows = [
        *compared.rows("prefill iteration", iterations_off(heard.held, prefill=True), prefills),
        *compared.rows("decode iteration", iterations_off(heard.held, prefill=False), decodes),
        *compared.rows("request, prefill", requests_off(heard.held_alone, prefill=True), prefills),
        *compared.rows("request, both", requests_off(heard.held_alone, prefill=False), decodes),
        *_counts(heard, windows.mixed),
        *coefficient_rows(model),
    ]
    return rows, model, ""


def _counts(heard: Heard, mixed: int) -> Sequence[Row]:
    restored = sum(s.sample.restored_tokens for s in heard.warm)
    return (
        Row(name="iterations of warm-up", value=len(heard.warm), unit="iterations"),
        Row(name="of them mixed, left out", value=mixed, unit="iterations"),
        Row(name="tokens restored in them", value=restored, unit="tokens"),
        Row(name="iterations held out", value=len(heard.held), unit="iterations"),
    )


def _pin(pid: int) -> bool:
    """Give the engine a processor of its own where there are two, and stay off it ourselves."""
    try:
        processors = sorted(os.sched_getaffinity(0))
        if len(processors) < 2:
            return False
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), processors[-1:])
    except (AttributeError, OSError):
        return False
    return True
