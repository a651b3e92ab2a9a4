"""Branch signals: headers X-Branch-*, or `branch` in the body; headers win field by field."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import msgspec
from starlette.datastructures import Headers

from evctl.core.branches import BranchSignal
from evctl.core.ids import check_id
from evctl.gateway.apierror import bad_request
from evctl.gateway.schema import BranchBody

OPS = ("continue", "fork", "spawn", "compact")
KINDS = ("main", "subagent", "compaction", "auxiliary")
SIGNALS = ("end", "rewrite", "fork")
"""What may be said about a branch without inference."""

MAX_VERSION = 2**53 - 1
MAX_RESUME_S = 366 * 86_400.0
MAX_NUMBER_CHARS = 32

_HEADERS = {name: "x-branch-" + name.replace("_", "-") for name in BranchBody.__struct_fields__}


def branch_signal(headers: Headers, body: BranchBody | None) -> BranchSignal | None:
    """The signal that a request carries, None when it says nothing about branches.

    Raises ApiError 400 with the name of the header, or of the field in the body, at fault.
    """
    values, where = _merged(headers, body)
    return _signal(values, where) if values else None


def path_signal(headers: Headers, body: BranchBody, branch: str, what: str) -> BranchSignal:
    """The signal of POST /v1/branches/{branch}/{what}; `branch` is the new one of a fork."""
    values, where = _merged(headers, body)
    values["id"], where["id"] = branch, "id"
    if what == "fork":
        values["op"] = "fork"
    if what == "rewrite" and "version" not in values:
        raise bad_request("a rewrite says the new version", "version")
    return _signal(values, where)


def _merged(headers: Headers, body: BranchBody | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Field -> value, and field -> what the client calls it. A name that is nearly right would
    do nothing without a word: it is an error."""
    known = list(_HEADERS.values())
    for name in headers:
        if name.startswith("x-branch-") and name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise bad_request(f"there is no header {name[:60]}; {hint}", name[:60])
    values: dict[str, Any] = {}
    where: dict[str, str] = {}
    sent = {} if body is None else msgspec.structs.asdict(body)
    for field, header in _HEADERS.items():
        if header in headers:
            values[field] = _header_value(field, header, headers[header])
            where[field] = header
        elif sent.get(field) is not None:
            values[field], where[field] = sent[field], f"branch.{field}"
    return values, where


def _header_value(field: str, header: str, shown: str) -> Any:
    """Text, number or flag from a header; starlette shows its bytes as latin-1."""
    try:
        text = shown.encode("latin-1").decode("utf-8").strip()
        if field == "version":
            return int(_short(text))
        if field == "expect_resume":
            return float(_short(text))
        if field == "final":
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    except (ValueError, KeyError) as error:
        raise bad_request(f"{header}: cannot read {shown[:40]!r}", header) from error
    return text


def _short(text: str) -> str:
    if len(text) > MAX_NUMBER_CHARS or not text.isascii():
        raise ValueError("not a number of ours")
    return text


def _signal(values: dict[str, Any], where: dict[str, str]) -> BranchSignal:
    if "id" not in values:
        raise bad_request("branch fields need the branch's id: send X-Branch-Id", "x-branch-id")
    for field in ("id", "session", "parent"):
        if field in values:
            _check_id(values[field], where[field])
    _check_choice(values, where, "op", OPS)
    _check_choice(values, where, "kind", KINDS)
    _check_range(values, where, "version", MAX_VERSION)
    _check_range(values, where, "expect_resume", MAX_RESUME_S)
    signal = BranchSignal(
        branch=values["id"],
        session=values.get("session", ""),
        parent=values.get("parent", ""),
        op=values.get("op", "continue"),
        version=values.get("version"),
        final=values.get("final", False),
        expect_resume_s=values.get("expect_resume"),
        kind=values.get("kind", "main"),
    )
    if signal.op == "fork" and not signal.parent:
        raise bad_request("a fork names the branch that it leaves", "x-branch-parent")
    if signal.parent == signal.branch:
        raise bad_request("a branch cannot be its own parent", where["parent"])
    return signal


def _check_id(value: str, name: str) -> None:
    try:
        check_id(value, name)
    except ValueError as error:
        raise bad_request(str(error), name) from error


def _check_choice(
    values: dict[str, Any], where: dict[str, str], field: str, choices: tuple[str, ...]
) -> None:
    if field in values and values[field] not in choices:
        name = where[field]
        raise bad_request(f"{name} must be one of {', '.join(choices)}", name)


def _check_range(values: dict[str, Any], where: dict[str, str], field: str, most: float) -> None:
    value = values.get(field)
    if value is not None and not 0 <= value <= most:  # nor is NaN
        name = where[field]
        raise bad_request(f"{name} must be in 0..{most:.0f}", name)
