"""Orders to a running faulty engine, and what it did: two files that test and engine share.

The orders are replaced as a whole and looked at with each call of the transfer, so an engine that
is kept alive over many rounds can be told anew what is to go wrong. The notes survive a killed
engine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from evengine.ports import Piece
from evengine.transfer.faults import AtRandom, Fault, FaultKind
from evengine.transfer.faulty import Note


class Orders(msgspec.Struct, frozen=True):
    """As faults.AtRandom: nothing goes wrong at rates of 0. polls: of each delay exactly, if it
    is not 0."""

    seed: int = 0
    kinds: tuple[FaultKind, ...] = ()
    reads: float = 0.0
    writes: float = 0.0
    max_polls: int = 6
    polls: int = 0


class TimedNote(msgspec.Struct, frozen=True):
    """at_s: on the machine's monotonic clock, which all its processes share."""

    at_s: float
    note: Note


def give_orders(path: Path, orders: Orders) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(orders))
    fresh.replace(path)


def notes_path(orders: Path) -> Path:
    return orders.with_suffix(".notes")


class Ordered:
    """faults.Schedule by the orders in a file; each new file starts its seed afresh."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = (0, 0)
        self._orders = Orders()
        self._schedule = AtRandom(0, ())

    def fault(self, push: bool, pieces: Sequence[Piece], /) -> Fault | None:
        self._look()
        fault = self._schedule.fault(push, pieces)
        if fault is not None and self._orders.polls:
            return msgspec.structs.replace(fault, polls=self._orders.polls)
        return fault

    def _look(self) -> None:
        with self._path.open("rb") as file:
            status = os.fstat(file.fileno())
            seen = (status.st_ino, status.st_mtime_ns)
            if seen == self._seen:
                return
            self._seen = seen
            orders = self._orders = msgspec.json.decode(file.read(), type=Orders)
        self._schedule = AtRandom(
            orders.seed,
            orders.kinds,
            reads=orders.reads,
            writes=orders.writes,
            max_polls=orders.max_polls,
        )


def write_notes(orders: Path) -> Callable[[Note], None]:
    """A line a note, written at once."""
    file = notes_path(orders).open("ab", buffering=0)

    def noted(note: Note) -> None:
        file.write(msgspec.json.encode(TimedNote(time.monotonic(), note)) + b"\n")

    return noted


class NoteReader:
    """Notes that were written since the last look."""

    def __init__(self, orders: Path) -> None:
        self._path = notes_path(orders)
        self._path.touch()
        self._offset = 0

    def fresh(self) -> list[TimedNote]:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [msgspec.json.decode(line, type=TimedNote) for line in whole.splitlines()]
