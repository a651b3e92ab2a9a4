"""Branches and blocks to order, and the routes of the fake admin server that tell them."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from evctl.core.kv_status import (
    BlockCopy,
    BranchDetail,
    BranchEnd,
    BranchName,
    BranchPage,
    BranchPlace,
    BranchRow,
    BranchTree,
    HeldInterval,
    KvBlock,
    KvCheck,
    KvStatus,
    KvSummary,
    NodeBlocks,
    TreeRow,
)
from evctl.core.status import ErrorBody

KEY = "00112233445566778899aabbccddeeff"
REFERENCES = (60, 120, 12, 6, 2, 0)


def row(branch: str, blocks: int = 100, **changes: Any) -> BranchRow:
    values: dict[str, Any] = {
        "parent": "",
        "kind": "root",
        "state": "live",
        "version": 0,
        "open_requests": 0,
        "silent_s": 4.25,
        "holders": {"P": {"n1": blocks}, "D": {"n3": blocks}},
    }
    return BranchRow("default", branch, blocks=blocks, **{**values, **changes})


ROWS = (
    row("agent-7/main", 120, version=2, open_requests=1, silent_s=0.5),
    row("agent-7/scout", 40, parent="agent-7/main", kind="sub-agent", state="suspect"),
    row(
        "agent-7/try", 128, parent="agent-7/main", kind="fork",
        holders={"P": {"n1": 100, "n2": 20, "n3": 8}, "D": {}},
    ),
)  # fmt: skip
KV = KvStatus(200, 150, live=2, suspect=1, ended=9, references=REFERENCES, references_age_s=0.4)
SUMMARY = KvSummary(
    status=KV,
    runs=12,
    requests=1,
    nodes=(NodeBlocks("n1", (40, 10, 50), l1=90, l2=100), NodeBlocks("n2", (0, 0, 0), 0, 0)),
    tallies={"late_version": 3, "unknown_node": 0},
)
CHECK = KvCheck((), 0, 3, 1, 12, 150, 200, 0.0312, 0.0312)
BLOCK = KvBlock(
    key=KEY,
    position=33,
    copies=(
        BlockCopy("n1", (1, 2), 2, 2, 1, 0, {"P": 3, "D": 0}),
        BlockCopy("n3", (2,), 0, 0, 0, 0, {"P": 0, "D": 0}),
    ),
    branches=(BranchName("default", "agent-7/main"), BranchName("default", "agent-7/try")),
    branches_total=2,
    promised_by=("r-17",),
)


class FakeKv:
    """rows, summary, check, block: what calls answer. ended: ids that are remembered. calls: of
    ends, and how lists were asked for."""

    def __init__(self) -> None:
        self.rows = list(ROWS)
        self.ended = {"agent-7/old"}
        self.summary = SUMMARY
        self.check = CHECK
        self.block = BLOCK
        self.calls: list[tuple[str, Any]] = []

    def routes(self) -> list[Route]:
        base = "/admin/v1"
        return [
            Route(f"{base}/kv/check", self._check),
            Route(f"{base}/kv/summary", self._summary),
            Route(f"{base}/kv/blocks/{{key}}", self._block),
            Route(f"{base}/branches", self._branches),
            Route(f"{base}/branches/{{tenant}}/{{branch:path}}/tree", self._tree),
            Route(f"{base}/branches/{{tenant}}/{{branch:path}}/end", self._end, methods=["POST"]),
            Route(f"{base}/branches/{{tenant}}/{{branch:path}}", self._branch),
        ]

    async def _check(self, _: Request) -> Response:
        return _answer(self.check)

    async def _summary(self, _: Request) -> Response:
        return _answer(self.summary)

    async def _block(self, request: Request) -> Response:
        key = request.path_params["key"]
        if self.block.key.startswith(key):
            return _answer(self.block)
        return _absent("EV-1355", f"no block has the key {key}")

    async def _branches(self, request: Request) -> Response:
        asked = dict(request.query_params)
        self.calls.append(("branches", asked))
        rows = [
            each
            for each in self.rows
            if each.branch.startswith(asked.get("prefix", ""))
            and all(asked.get(name, value) == value for name, value in _facets(each))
            and asked.get("node", "") in ("", *each.holders["P"], *each.holders["D"])
        ]
        rows.sort(key=lambda each: (-each.blocks if asked["sort"] == "blocks" else 0, each.branch))
        matching = len(rows)
        if "after_branch" in asked:
            names = [each.branch for each in rows]
            rows = rows[names.index(asked["after_branch"]) + 1 :]
        shown = rows[: int(asked["limit"])]
        last = None
        if len(rows) > len(shown):
            last = BranchPlace(float(-shown[-1].blocks), shown[-1].tenant, shown[-1].branch)
        return _answer(BranchPage(tuple(shown), last, matching, len(self.rows)))

    async def _branch(self, request: Request) -> Response:
        found = self._found(request)
        if found is None:
            return _absent("EV-1354", "tenant default has no such branch")
        own = found.blocks
        return _answer(
            BranchDetail(
                row=found,
                tip=KEY,
                intervals={
                    "P": (
                        HeldInterval(0, own - 20, "n1", own - 20),
                        HeldInterval(own - 20, own, "n2", 4),
                    ),
                    "D": (HeldInterval(0, own, "n3", own),),
                },
                children=tuple(r.branch for r in self.rows if r.parent == found.branch),
                children_total=sum(r.parent == found.branch for r in self.rows),
            )
        )

    async def _tree(self, request: Request) -> Response:
        found = self._found(request)
        if found is None:
            return _absent("EV-1354", "tenant default has no such branch")
        gone = BranchRow("default", "agent-7/old", "", "", "ended", 0, 0, 0, 0.0)
        below = [TreeRow(2, each) for each in self.rows if each.parent == found.branch]
        rows = (TreeRow(0, gone), TreeRow(1, found), *below)
        return _answer(BranchTree("default", found.branch, rows, left_out=0))

    async def _end(self, request: Request) -> Response:
        name = request.path_params["branch"]
        self.calls.append(("end", (name, msgspec.json.decode(await request.body()))))
        found = self._found(request)
        if found is None and name not in self.ended:
            return _absent("EV-1354", f"tenant default has no branch {name}")
        if found is None:
            return _answer(BranchEnd("default", name, False, f"branch {name} has ended"))
        self.rows.remove(found)
        self.ended.add(name)
        return _answer(BranchEnd("default", name, applied=True))

    def _found(self, request: Request) -> BranchRow | None:
        names = (request.path_params["tenant"], request.path_params["branch"])
        return next((r for r in self.rows if (r.tenant, r.branch) == names), None)


def _facets(each: BranchRow) -> list[tuple[str, str]]:
    return [("tenant", each.tenant), ("state", each.state), ("kind", each.kind)]


def _answer(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _absent(code: str, what: str) -> Response:
    body = ErrorBody(code, what, "it is not there", "look elsewhere", 9)
    return Response(msgspec.json.encode(body), 404, media_type="application/json")
