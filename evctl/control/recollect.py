"""What became of a request that memory no longer has: read from the journals.

A journal holds events and effects. Why a node was chosen is not in it and need not be: the same
events, run again, give the same reasons. That takes about as long as the processor took for it
then, and looking through gigabytes for an id would stop a thread's neighbours, so a process of its
own does it: `python -m evctl.control.recollect FOLDER REQUEST SECONDS`.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from evctl.control.journal import segments
from evctl.control.replay import JournalReader
from evctl.control.stories import Stories
from evctl.core.errors import EvctlError
from evctl.core.why import RequestWhy
from evctl.policy.state import ClusterState, step

LIMIT_S: Final = 25.0
"""Less than a client waits."""
_NICE: Final = 10
"""What serves comes first."""
_MOST_ID: Final = 1_024
"""Characters. No id of a request is as long, or holds what no command line can."""
_LOOK_EVERY: Final = 256
"""Steps between two looks at the clock."""


class Recollected(msgspec.Struct, frozen=True):
    """gave_up: time was over before everything was looked through."""

    found: RequestWhy | None
    gave_up: bool = False


class Recollection:
    """Of one journal folder; one search at a time."""

    def __init__(self, folder: Path, limit_s: float = LIMIT_S) -> None:
        self._folder = folder
        self._limit_s = limit_s
        self._turn = asyncio.Lock()

    async def find(self, request_id: str) -> RequestWhy | None:
        """None when no journal names it. Raises EvctlError (EV-1365) when looking took too long,
        or could not be done."""
        if len(request_id) > _MOST_ID or not request_id.isprintable():
            return None
        async with self._turn:
            answer = await self._apart(request_id)
        try:
            said = msgspec.json.decode(answer, type=Recollected)
        except msgspec.DecodeError:
            raise _gave_up(request_id, "the process that read them broke off") from None
        if said.gave_up:
            raise _gave_up(request_id, f"reading them took more than {self._limit_s:.0f} s")
        return said.found

    async def _apart(self, request_id: str) -> bytes:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "evctl.control.recollect", str(self._folder), request_id),
            str(self._limit_s),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(self._limit_s + 2):
                answer, _ = await process.communicate()
        except TimeoutError:
            return msgspec.json.encode(Recollected(None, gave_up=True))
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return answer


def recollect(folder: Path, request_id: str, limit_s: float = LIMIT_S) -> Recollected:
    """Look through the lives that name the request, the newest first."""
    until_s = time.monotonic() + limit_s
    for epoch, paths in reversed(segments(folder).items()):
        if time.monotonic() > until_s:
            return Recollected(None, gave_up=True)
        if not any(_holds(path, request_id.encode()) for path in paths):
            continue
        try:
            reader = JournalReader(paths)
        except EvctlError:
            continue  # of another version, or without its beginning
        said = _told(reader, epoch, request_id, until_s)
        if said.found is not None or said.gave_up:
            return said
    return Recollected(None)


def _told(reader: JournalReader, epoch: int, request_id: str, until_s: float) -> Recollected:
    """Run a life again until the request has ended; to its end if it never did."""
    header = reader.header
    state = ClusterState(header.config)
    stories = Stories(state, only=request_id)
    for number, entry in enumerate(reader.entries()):
        result = step(state, entry.event, entry.now_s)
        stories.observe(entry.now_s, entry.event, result)
        story = stories.get(request_id)
        if story is not None and story.state:
            break
        if number % _LOOK_EVERY == 0 and time.monotonic() > until_s:
            return Recollected(None, gave_up=True)
    source = f"journal of epoch {epoch}"
    return Recollected(stories.told(request_id, header.wall_s - header.now_s, source))


def _holds(path: Path, name: bytes) -> bool:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            return text.find(name) >= 0
    except (OSError, ValueError):  # gone meanwhile, or empty
        return False


def _gave_up(request_id: str, why: str) -> EvctlError:
    return EvctlError(
        what=f"request {request_id} was not found in time",
        why=f"memory no longer has it; of the journals, {why}",
        next_step="ask again when the cluster is quieter",
        code="EV-1365",
    )


def main(arguments: list[str]) -> int:
    folder, request_id, limit_s = arguments
    os.nice(_NICE)
    said = recollect(Path(folder), request_id, float(limit_s))
    sys.stdout.buffer.write(msgspec.json.encode(said))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
