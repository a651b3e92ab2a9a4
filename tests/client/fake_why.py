"""Decisions of a planner and the story of a request to order, and the routes that tell them."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from evctl.core.effects import Prediction
from evctl.core.planning import Candidate, Forecast, PlanDecision, SliceRecord
from evctl.core.status import ErrorBody, EventRecord, Move, SplitWrite
from evctl.core.transitions import NodeMove, Transition
from evctl.core.why import (
    BlockWhy,
    CopyWhy,
    NodeRequest,
    NodeWhy,
    PlanOutcome,
    RequestOutcome,
    RequestWhy,
    RoutingDecision,
    SplitWhy,
)
from tests.client.fake_kv import BLOCK

AT_S = 1_790_000_000.5


def slice_record(**changes: Any) -> SliceRecord:
    values: dict[str, Any] = {
        "start_s": AT_S - 60,
        "end_s": AT_S,
        "arrivals": 30,
        "completions": 28,
        "uncached_tokens": 400.0,
        "cached_tokens": 900.0,
        "attention_pairs": 5e5,
        "restored_tokens": 20.0,
        "output_tokens": 120.0,
        "accepted_per_iteration": 1.0,
        "tokens_per_iteration": 512.0,
        "in_flight": 6.0,
        "decode_queue": 0.5,
        "prefill_queue": 2.0,
    }
    return SliceRecord(**{**values, **changes})


def decision(**changes: Any) -> PlanDecision:
    values: dict[str, Any] = {
        "number": 4,
        "time_s": AT_S,
        "mode": "auto",
        "current": "2P1D",
        "verdict": "move",
        "chosen": "1P2D",
        "candidates": (
            Candidate("1P2D", Forecast(2.5, 0.8, 3.1, 1.9), 0.12, 0.03, "chosen", "12% above"),
            Candidate("2P1D", Forecast(2.23, 0.6, 3.4, 1.2), 0.0, 0.0, "current", ""),
        ),
        "slices": (slice_record(), slice_record(thin=True, arrivals=12)),
        "compared_slices": 4,
        "model": {"n1": "fitted", "n2": "fitted", "n3": "kept"},
        "moves": (Move("n2", "P", "D", running=1, queued=2),),
        "why": "2P1D -> 1P2D: 12% above, 4 standard errors",
    }
    return PlanDecision(**{**values, **changes})


def blind() -> PlanDecision:
    why = "8 of 10 slices have fewer than 20 requests"
    nothing: dict[str, Any] = {"chosen": "", "candidates": (), "moves": (), "compared_slices": 0}
    return decision(verdict="blind", why=why, number=1, **nothing)


CHANGE = Transition(
    number=3,
    generation=8,
    by="ada@desk",
    reason="evening load",
    before="2P1D",
    after="1P2D",
    begun_s=100.0,
    moves=(NodeMove("n2", "P", "D", 100.0, 1, 2, 100.018, 103.4, 1, 2, "settled"),),
    outcome="settled",
    ended_s=103.4,
)
WRITE = SplitWrite(
    mode="hold",
    before="2P1D",
    after="1P2D",
    by="ada@desk",
    reason="evening load",
    generation=8,
    moves=(Move("n2", "P", "D", running=1, queued=2),),
    change=3,
)
_TERMS = {"total_s": 0.31, "remaining_s": 0.1, "queued_s": 0.0, "own_s": 0.21}
PREDICTED = Prediction(ttft_s=0.31, wait_s=0.1, service_s=0.21, fetch_s=0.0)
REQUEST = RequestWhy(
    request_id="r-7",
    tenant="default",
    branch="agent-7/main",
    source="memory",
    arrived_s=AT_S,
    prompt_tokens=412,
    state="done",
    reason="length",
    decisions=(
        RoutingDecision(
            0.0,
            "arrived",
            "n2",
            "n3",
            msgspec.structs.replace(PREDICTED, ttft_s=0.9),
            {
                "n1": {**_TERMS, "total_s": 1.2, "cached_tokens": 0.0, "uncached_tokens": 412.0},
                "n2": {**_TERMS, "total_s": 0.9, "cached_tokens": 400.0, "uncached_tokens": 12.0},
            },
            {"n3": {"decodes": 2.0, "has_room": 1.0}},
        ),
        RoutingDecision(0.25, "recalled", "n1", "n3", PREDICTED, {}, {}),
        RoutingDecision(
            0.25,
            "n1 was lost",
            "n3",
            "n3",
            PREDICTED,
            {"n2": {**_TERMS, "total_s": 0.9, "interfering_s": 0.0}},
            {"n3": {"decodes": 2.0, "has_room": 1.0}},
            append={"n3": {**_TERMS, "interfering_s": 0.02}},
            appended=True,
        ),
    ),
    outcome=RequestOutcome(0.12, 0.2, None, None, 0.57, 0.01, 2.8, 0, 412, 64),
)
NODE = NodeWhy(
    node="n2",
    state="ok",
    role="D",
    settled_role="P",
    how="2P1D -> 1P2D by ada@desk: evening load",
    last=EventRecord(2, AT_S, "info", WRITE.told(), write=WRITE),
    move=NodeMove("n2", "P", "D", 100.0, 1, 2, 100.018, None, 0, 2),
    model="fitted",
    running_s=0.4,
    queued_s=0.0,
    decodes=1,
    requests=(NodeRequest("r-9", "prefill", 1.5, 300, 120, PREDICTED),),
    requests_total=3,
)


class FakeWhy:
    """plan, split, node, request, block: what calls answer; None is not found."""

    def __init__(self) -> None:
        self.plan = decision()
        self.split = SplitWhy(
            split="1P2D",
            target_split="1P2D",
            mode="auto",
            held_by="",
            hold_reason="",
            held_until_s=None,
            decisions=(decision(),),
            outcomes=(
                PlanOutcome(
                    4, "move", "1P2D", Forecast(2.5, 0.8, 3.1), AT_S, AT_S + 600,
                    Forecast(2.41, 0.9, 3.0), 1446,
                ),
            ),
            writes=(EventRecord(2, AT_S, "info", WRITE.told(), write=WRITE),),
        )  # fmt: skip
        self.calls: list[str] = []

    def routes(self) -> list[Route]:
        base = "/admin/v1"
        return [
            Route(f"{base}/plan", self._plan),
            Route(f"{base}/why/split", self._split),
            Route(f"{base}/why/nodes/{{name}}", self._node),
            Route(f"{base}/why/requests/{{name:path}}", self._request),
            Route(f"{base}/why/blocks/{{name}}", self._block),
        ]

    async def _plan(self, request: Request) -> Response:
        return _answer(self.plan)

    async def _split(self, request: Request) -> Response:
        self.calls.append(str(request.url.query))
        number = request.query_params.get("number")
        if number is not None and int(number) not in {d.number for d in self.split.decisions}:
            return _absent("EV-1367", f"no decision {number} of the planner is known")
        return _answer(self.split)

    async def _node(self, request: Request) -> Response:
        name = request.path_params["name"]
        return _answer(NODE) if name == "n2" else _absent("EV-1366", f"no node is named {name}")

    async def _request(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name == REQUEST.request_id:
            return _answer(REQUEST)
        return _absent("EV-1363", f"nothing is known of request {name}")

    async def _block(self, request: Request) -> Response:
        if not BLOCK.key.startswith(request.path_params["name"].lower()):
            return _absent("EV-1355", "no block has that key")
        copies = (CopyWhy("n1", (1, 2), "last: live branches refer to it"),)
        return _answer(BlockWhy(BLOCK, copies))


def _answer(value: object) -> Response:
    return Response(msgspec.json.encode(value))


def _absent(code: str, what: str) -> Response:
    body = ErrorBody(code, what, "it is not there", "evctl status", 9)
    return Response(msgspec.json.encode(body), 404)
