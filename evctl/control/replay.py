"""Run a journal through the reducer again and compare, byte for byte:
`python -m evctl.control.replay FOLDER`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from evctl.control.journal import (
    FORMAT,
    FRAME,
    JournalEnd,
    JournalEntry,
    JournalHeader,
    encode_effects,
    numbers_of,
    segments,
)
from evctl.core.errors import IntegrityError, NotFoundError
from evctl.policy.state import ClusterState, PolicyConfig, check, step

MAX_DIFFERENCES: Final = 20
_ARRAY: Final = b"\x90"
"""In msgpack, arrays begin with this byte or a later one, small maps before it."""


class ReplayReport(msgspec.Struct, frozen=True):
    """steps: entries run again. differences: entries whose effects differ, at most 20.
    violations: what check() says at the end. tail: why reading stopped early, "" when the journal
    was read to where its control plane closed it. missing: something that was written, and that
    followed what was read, is not there or not readable; no crash does that.

    A journal without its end, as a crash leaves it, may have lost whole segments too: that cannot
    be known, and `tail` says that the end is not there.
    """

    epoch: int
    steps: int
    differences: tuple[str, ...]
    violations: tuple[str, ...]
    tail: str
    missing: bool = False

    @property
    def equal(self) -> bool:
        """Of what was read; never when a part of the journal is known to be missing."""
        return not self.differences and not self.violations and not self.missing


def replay(path: Path, config: PolicyConfig | None = None) -> ReplayReport:
    """Run one epoch again: the last one of a folder, or that of a segment.

    config: instead of the one in the journal, to see what another would have done. A tail that
    a crash cut off, or a segment that is missing, is reported, not an error. Raises
    NotFoundError (EV-1321) when there is no journal, IntegrityError (EV-1322) when its beginning
    is missing or unreadable.
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
    return ReplayReport(
        epoch, steps, tuple(differences), tuple(check(state)), reader.tail, reader.missing
    )


class JournalReader:
    """The entries of one epoch. `tail` and `missing` say, after the last of them, where reading
    stopped; see ReplayReport."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self.tail = ""
        self.missing = False
        self._entry = msgspec.msgpack.Decoder(JournalEntry)
        self._end = msgspec.msgpack.Decoder(JournalEnd)
        header = self._header(self._bodies(paths[0]))
        if header is None:
            raise _unreadable(paths[0], "its header cannot be read")
        self.header = header
        if self.header.format != FORMAT or self.header.segment != 0:
            raise _unreadable(paths[0], "it is not the beginning of a journal of this format")
        self.tail = ""

    def entries(self) -> Iterator[JournalEntry]:
        end: JournalEnd | None = None
        for number, path in enumerate(self._paths):
            end = None
            bodies = self._bodies(path)
            if self._is_out_of_place(path, number, self._header(bodies)):
                return
            for body in bodies:
                try:
                    if body[:1] < _ARRAY:
                        end = self._end.decode(body)
                        continue
                    entry = self._entry.decode(body)
                except msgspec.DecodeError as error:
                    self.tail = f"{path.name} holds something else: {error}"
                    break
                yield entry
            if self.tail or end is None:
                self.tail = self.tail or f"{path.name} has no end"
                self.missing = path != self._paths[-1]
                return
        if end is not None and end.next is not None:
            self._miss(f"segment {end.next} is missing, and whatever followed it")

    def _is_out_of_place(self, path: Path, number: int, header: JournalHeader | None) -> bool:
        if numbers_of(path) != (self.header.epoch, number):
            self._miss(f"segment {number} is missing: {path.name} comes instead of it")
        elif header is None:
            self._miss(f"the header of {path.name} cannot be read")
            self.missing = path != self._paths[-1]
        elif (header.epoch, header.segment) != (self.header.epoch, number):
            self._miss(f"{path.name} holds segment {header.segment} of epoch {header.epoch}")
        return bool(self.tail)

    def _miss(self, tail: str) -> None:
        self.tail, self.missing = tail, True

    @staticmethod
    def _header(bodies: Iterator[bytes]) -> JournalHeader | None:
        try:
            return msgspec.msgpack.decode(next(bodies, b""), type=JournalHeader)
        except msgspec.DecodeError:
            return None

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


def main(arguments: list[str]) -> int:
    """`python -m evctl.control.replay FOLDER`: 1 when effects differ or the books are wrong."""
    report = replay(Path(arguments[0]))
    told = [f"epoch {report.epoch}: {report.steps} steps run again"]
    told += [
        f"  {line}" for line in (*report.differences, *report.violations, report.tail) if line
    ]
    told.append("equal, byte for byte" if report.equal else "not equal")
    sys.stdout.write("\n".join(told) + "\n")
    return 0 if report.equal else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
