"""Run a journal through the reducer again and compare, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from evctl.control.journal import (
    FORMAT,
    FRAME,
    JournalEntry,
    JournalHeader,
    encode_effects,
    segments,
)
from evctl.core.errors import IntegrityError, NotFoundError
from evctl.policy.state import ClusterState, PolicyConfig, check, step

MAX_DIFFERENCES: Final = 20


class ReplayReport(msgspec.Struct, frozen=True):
    """steps: entries run again. differences: entries whose effects differ, at most 20.
    violations: what check() says at the end. tail: why reading stopped early, "" if it did not.
    """

    epoch: int
    steps: int
    differences: tuple[str, ...]
    violations: tuple[str, ...]
    tail: str

    @property
    def equal(self) -> bool:
        return not self.differences and not self.violations


def replay(path: Path, config: PolicyConfig | None = None) -> ReplayReport:
    """Run one epoch again: the last one of a folder, or that of a segment.

    config: instead of the one in the journal, to see what another would have done. A tail that
    a crash cut off is reported, not an error. Raises NotFoundError (EV-1321) when there is no
    journal, IntegrityError (EV-1322) when its beginning is missing or unreadable.
    """
    epoch, paths = _choose(path)
    reader = JournalReader(paths)
    state = ClusterState(config or reader.header.config)
    steps = 0
    differences: list[str] = []
    for steps, entry in enumerate(reader.entries(), start=1):
        effects = encode_effects(step(state, entry.event, entry.now_s).effects)
        if effects != bytes(entry.effects) and len(differences) < MAX_DIFFERENCES:
            differences.append(f"step {steps} ({type(entry.event).__name__}): other effects")
    return ReplayReport(epoch, steps, tuple(differences), tuple(check(state)), reader.tail)


class JournalReader:
    """The entries of one epoch. `tail` says, after the last of them, where reading stopped."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self.tail = ""
        self._entry = msgspec.msgpack.Decoder(JournalEntry)
        first = next(self._bodies(paths[0]), None)
        try:
            self.header = msgspec.msgpack.decode(first or b"", type=JournalHeader)
        except msgspec.DecodeError as error:
            raise _unreadable(paths[0], "its header cannot be read") from error
        if self.header.format != FORMAT or self.header.segment != 0:
            raise _unreadable(paths[0], "it is not the beginning of a journal of this format")
        self.tail = ""

    def entries(self) -> Iterator[JournalEntry]:
        for path in self._paths:
            bodies = self._bodies(path)
            next(bodies, None)
            for body in bodies:
                yield self._entry.decode(body)
            if self.tail:
                return

    def _bodies(self, path: Path) -> Iterator[bytes]:
        with path.open("rb") as file:
            while head := file.read(FRAME.size):
                offset = file.tell() - len(head)
                if len(head) < FRAME.size:
                    self.tail = f"{path.name} ends inside a frame, at byte {offset}"
                    return
                size, checksum = FRAME.unpack(head)
                body = file.read(size)
                if len(body) < size:
                    self.tail = f"{path.name} ends inside a frame, at byte {offset}"
                    return
                if crc32(body) != checksum:
                    self.tail = f"{path.name} is damaged at byte {offset}"
                    return
                yield body


def _choose(path: Path) -> tuple[int, list[Path]]:
    directory = path if path.is_dir() else path.parent
    lives = segments(directory)
    if path in (chosen := [p for paths in lives.values() for p in paths]):
        epoch = next(epoch for epoch, paths in lives.items() if path in paths)
    elif path.is_dir() and chosen:
        epoch = max(lives)
    else:
        raise NotFoundError(
            what=f"no journal in {path}",
            why="there is no file EPOCH-SEGMENT.evj",
            next_step="name the journal folder of a cluster's state directory",
            code="EV-1321",
        )
    return epoch, lives[epoch]


def _unreadable(path: Path, why: str) -> IntegrityError:
    return IntegrityError(
        what=f"cannot replay {path}",
        why=why,
        next_step="name the folder of the journal, or its first segment",
        code="EV-1322",
    )
