"""How each response of a trace ended, which our own trace form does not hold.

Read from the same file beside the importer: Weka's forms carry `stop`. Elsewhere it is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from evctl.policy.eviction import Ending
from evctl.trace.importers import weka
from evctl.trace.lines import decode, read_document, read_lines

STOPS = {"tool_use": Ending.TOOL_CALL, "end_turn": Ending.TURN}

Endings = Mapping[tuple[str, str], tuple[Ending, ...]]
"""By conversation and branch, one for each request."""


class _Entry(msgspec.Struct, frozen=True):
    """A request or, of type `subagent`, a list of them."""

    type: str = ""
    stop: str | None = None
    requests: list[_Entry] = []


class _Document(msgspec.Struct, frozen=True):
    id: str
    requests: list[_Entry]


_decoder = msgspec.json.Decoder(_Document)


def read_endings(path: Path) -> Endings:
    """Of a trace in any form; empty where the form does not tell. Raises EvctlError."""
    found: dict[tuple[str, str], tuple[Ending, ...]] = {}
    if path.is_dir() or weka.is_weka(path):
        for file, line, data in _documents(path):
            document = decode(_decoder, data, file, line)
            for branch, endings in _branches("main", document.requests, [1]):
                found[document.id, branch] = endings
    return found


def _documents(path: Path) -> Iterator[tuple[Path, int, bytes]]:
    if path.is_dir():
        for file in sorted(p for p in path.iterdir() if p.name.endswith((".json", ".json.gz"))):
            yield file, 1, read_document(file)
    elif path.name.removesuffix(".gz").endswith(".json"):
        yield path, 1, read_document(path)
    else:
        for line, data in read_lines(path):
            yield path, line, data


def _branches(
    name: str, entries: list[_Entry], count: list[int]
) -> Iterator[tuple[str, tuple[Ending, ...]]]:
    """Names as the importer gives them; count: branches so far."""
    endings: list[Ending] = []
    for entry in entries:
        if entry.type != "subagent":
            endings.append(STOPS.get(entry.stop or "", Ending.UNKNOWN))
        elif any(item.type != "subagent" for item in entry.requests):
            child = f"a{count[0]}"
            count[0] += 1
            yield from _branches(child, entry.requests, count)
    yield name, tuple(endings)
