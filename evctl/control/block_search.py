"""A block by its key, or by the beginning of it: where it is, and who needs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from evctl.control.branch_list import PHASES
from evctl.control.walks import Walks
from evctl.core.blocks import KEY_BYTES
from evctl.core.errors import NotFoundError, UsageError
from evctl.core.kv_status import BlockCopy, BranchName, KvBlock
from evctl.policy.directory import Directory, spans
from evctl.policy.directory.counts import class_of, leases, lives, suspects
from evctl.policy.directory.ledger import Branch
from evctl.policy.directory.requests import Request
from evctl.policy.directory.runs import Node, Run

MOST_BRANCHES: Final = 1_000
"""Branches of a block that are named; they are counted to the end."""
MOST_CANDIDATES: Final = 5
_AT_ONCE: Final = 16
"""Runs looked at in one step of a walk."""


class BlockSearch:
    """Looks through all runs, in slices."""

    def __init__(self, directory: Directory, walks: Walks) -> None:
        self._directory = directory
        self._walks = walks

    async def find(self, wanted: str) -> KvBlock:
        """wanted: 8 to 32 hexadecimal digits. Raises NotFoundError (EV-1355), or UsageError
        (EV-1356) when several keys begin so."""
        wanted = wanted.lower()
        search = _Search(self._directory, wanted)
        await self._walks.take(search.walk())
        if not search.keys:
            raise _unknown(wanted)
        if len(search.keys) > 1:
            raise UsageError(
                what=f"{wanted} names more than one block",
                why="it begins " + ", ".join(key.hex() for key in sorted(search.keys)),
                next_step="give more digits of the key",
                code="EV-1356",
            )
        (key,) = search.keys
        users = _Users(search.run, key)
        await self._walks.take(users.walk())
        # The tree may have changed meanwhile: what is told is of this moment.
        run = self._now_in(search.run, key)
        if run is None:
            raise _unknown(wanted)
        position = run.find(key)
        return KvBlock(
            key=key.hex(),
            position=position,
            copies=tuple(
                copy
                for node in sorted(run.holders(), key=lambda node: node.name)
                if (copy := _copy(run, position, node, users)).tiers
            ),
            branches=users.names(),
            branches_total=len(users.branches),
            promised_by=tuple(sorted(users.promised_by)),
        )

    def _now_in(self, run: Run, key: bytes) -> Run | None:
        """The run that has the block now: a cut leaves the lower part in the object that was."""
        at: Run | None = run
        while at is not None and at.parent is not None:
            if at.find(key):
                return at
            at = at.parent
        return None


def _unknown(wanted: str) -> NotFoundError:
    return NotFoundError(
        what=f"no block has the key {wanted}",
        why="no node holds such a block, and no branch or request needs one",
        next_step="evctl branch show ID names the last block of a branch",
        code="EV-1355",
    )


def below(top: Run) -> Iterator[Run]:
    """A run and all that hang on it, parents first. Runs may be cut, joined and dropped between
    two steps: the part above a cut is then left out, which the caller has to look at."""
    stack = [top]
    while stack:
        run = stack.pop()
        yield run
        stack.extend((run.kids or {}).values())


class _Search:
    """Keys that begin so, up to a few; the run of the last."""

    def __init__(self, directory: Directory, wanted: str) -> None:
        self._directory = directory
        self._wanted = wanted
        self._start = bytes.fromhex(wanted[: len(wanted) // 2 * 2])
        self.keys: set[bytes] = set()
        self.run: Run = directory.tree.root

    def walk(self) -> Iterator[None]:
        if len(self._start) == KEY_BYTES and (run := self._directory.tree.index.get(self._start)):
            self._look_into(run)  # the last block of a run needs no search
            if self.keys:
                return
        for number, run in enumerate(below(self._directory.tree.root)):
            self._look_into(run)
            if len(self.keys) == MOST_CANDIDATES:
                return
            if number % _AT_ONCE == 0:
                yield

    def _look_into(self, run: Run) -> None:
        at = run.keys.find(self._start)
        while at >= 0:
            key = bytes(run.keys[at : at + KEY_BYTES])
            if at % KEY_BYTES == 0 and key.hex().startswith(self._wanted):
                self.keys.add(key)
                self.run = run
                if len(self.keys) == MOST_CANDIDATES:
                    return
            at = run.keys.find(self._start, at + 1)


class _Users:
    """Branches and requests whose path passes a block: their ends hang on its run or below."""

    def __init__(self, run: Run, key: bytes) -> None:
        self._run = run
        self._position = run.find(key)
        self.branches: set[Branch] = set()
        self._names: list[BranchName] = []
        self.promised_by: set[str] = set()
        self.named: dict[tuple[str, str], int] = {}
        """(node, phase) -> references."""

    def walk(self) -> Iterator[None]:
        for number, run in enumerate(below(self._run)):
            for at, tip in enumerate(list(run.tips or ())):
                if at % _AT_ONCE == _AT_ONCE - 1:
                    yield  # many branches may end in one place
                if tip.end < self._position:
                    continue
                if isinstance(tip, Branch):
                    self._add_branch(tip)
                elif isinstance(tip, Request) and _promises(tip, self._position):
                    self.promised_by.add(tip.id)
            if number % _AT_ONCE == 0:
                yield

    def names(self) -> tuple[BranchName, ...]:
        """The first branches by name."""
        self._cut()
        return tuple(self._names)

    def _cut(self) -> None:
        self._names.sort()
        del self._names[MOST_BRANCHES:]

    def _add_branch(self, branch: Branch) -> None:
        if branch in self.branches:  # it moved on while we walked
            return
        self.branches.add(branch)
        self._names.append(BranchName(branch.tenant, branch.id))
        if len(self._names) > 2 * MOST_BRANCHES:
            self._cut()
        for phase, held in zip(PHASES, branch.held, strict=True):
            for start, end, node in held:
                if start < self._position <= end:
                    key = (node.name, phase)
                    self.named[key] = self.named.get(key, 0) + 1


def _promises(request: Request, position: int) -> bool:
    return request.promise is not None and request.promise[1] < position <= request.prompt


def _copy(run: Run, position: int, node: Node, users: _Users) -> BlockCopy:
    at = position - 1
    steps = (run.refs or {}).get(node, ())
    ((_, _, count),) = spans.within(steps, run.start, at, position)
    return BlockCopy(
        node=node.name,
        tiers=tuple(
            tier for tier in (1, 2) if spans.clip(run.tiers[tier - 1].get(node, ()), at, position)
        ),
        block_class=class_of(count),
        live=lives(count),
        suspect=suspects(count),
        leases=leases(count),
        by_phase={phase: users.named.get((node.name, phase), 0) for phase in PHASES},
    )
