"""Writes to split and mode: who may, when, and what it would do."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from evctl.control.statedir import HeldRoles, StateDirectory
from evctl.control.writer import Writer
from evctl.core.effects import SplitWritten
from evctl.core.errors import ConflictError, EvctlError, RefusedError, UsageError
from evctl.core.events import Event, Override
from evctl.core.split import Role, Split, parse_split
from evctl.core.status import Move, SplitChange
from evctl.policy.state import ClusterState, StepResult
from evctl.policy.transition import HOLD, MODES, plan_moves


class Overrides:
    """Checks a write before the writer gets it, and keeps it over a restart; keeps the planner's
    writes, and the end of a hold, as well.

    A cluster's first change is free. The next one is refused, unless forced, until cooldown_s
    after that has settled, whoever made it; the planner waits by the same moment. One that is
    forced earlier takes the place of what is under way; without a cooldown any does. What is so
    already is not written again: no generation, no line of history. last_by: who wrote last in an
    earlier life. wall_s: seconds since the epoch, for people and files; the writer's clock is for
    nobody else.
    """

    def __init__(
        self,
        writer: Writer,
        directory: StateDirectory,
        clock: Callable[[], float],
        cooldown_s: float,
        wall_s: Callable[[], float] = time.time,
        last_by: str = "",
    ) -> None:
        self._writer = writer
        self._directory = directory
        self._clock = clock
        self._cooldown_s = cooldown_s
        self._wall_s = wall_s
        self._last_by = last_by or writer.state.held_by
        self._coming: HeldRoles | None = None
        writer.observers.append(self._observe)

    def set_split(
        self,
        split: str,
        *,
        by: str,
        reason: str = "",
        generation: int | None = None,
        plan: bool = False,
        force: bool = False,
        for_s: float | None = None,
    ) -> SplitChange:
        """Change the split and hold it, for for_s seconds or until somebody releases it. plan:
        only say what it would do, and whether it would be refused now.

        Raises UsageError (EV-1102, 1103) for a split that cannot be, RefusedError (EV-1101) for
        one that leaves a phase empty and (EV-1352) in the cooldown, ConflictError (EV-1351) when
        `generation` is not the present one, EvctlError (EV-1314) when it cannot be kept; nothing
        changed then.
        """
        state = self._writer.state
        wanted = parse_split(split)
        moves = plan_moves(state, wanted)
        self._expect(generation)
        before = str(state.split)
        unchanged = not moves and self._is_so(HOLD, reason, for_s)
        left_s = self._cooldown_left_s() if moves else 0.0
        if not plan and not unchanged:
            if left_s and not force:
                raise self._too_soon(wanted)
            self._apply(self._hold(str(wanted), by, reason, for_s, forced=bool(left_s)), moves)
        return SplitChange(
            before,
            str(wanted),
            moves,
            state.generation,
            applied=not plan and not unchanged,
            unchanged=unchanged,
            refused_until_s=self._wall_s() + left_s if plan and left_s else None,
            cooldown_s=self._cooldown_s,
            settling=bool(plan and left_s) and state.transitions.open is not None,
        )

    def set_mode(
        self,
        mode: str,
        *,
        by: str,
        reason: str = "",
        generation: int | None = None,
        for_s: float | None = None,
    ) -> None:
        """hold: the present split stays, for for_s seconds or until somebody releases it. auto:
        the planner moves nodes. advise: it only says what it would do.

        Raises UsageError (EV-1353) for another mode, ConflictError (EV-1351) and EvctlError
        (EV-1314) as `set_split`.
        """
        if mode not in MODES:
            raise UsageError(
                what=f"no mode is named {mode!r}",
                why=f"modes are {', '.join(MODES)}",
                next_step="choose one of them",
                code="EV-1353",
            )
        self._expect(generation)
        if self._is_so(mode, reason, for_s):
            return
        if mode == HOLD:
            self._apply(self._hold(str(self._writer.state.split), by, reason, for_s))
        else:
            self._apply(Override(mode, "", by, reason))

    # ------------------------------------------------------------ what is written

    def _hold(
        self, split: str, by: str, reason: str, for_s: float | None, *, forced: bool = False
    ) -> Override:
        until_s = None if for_s is None else self._clock() + for_s
        return Override(HOLD, split, by, reason, forced=forced, until_s=until_s)

    def _is_so(self, mode: str, reason: str, for_s: float | None) -> bool:
        """Whether the mode is that one, for that reason and without an end. Other modes than hold
        keep no reason, so one that is given is news; so is any end of a hold."""
        state = self._writer.state
        endless = for_s is None and state.held_until_s is None
        return state.mode == mode and state.hold_reason == reason and endless

    def _apply(self, override: Override, moves: tuple[Move, ...] = ()) -> None:
        """On disk first: what cannot be kept is not done, so that no restart undoes it.

        Raises EvctlError (EV-1314); nothing changed then.
        """
        state = self._writer.state
        held = override.mode == HOLD
        until_s = override.until_s if held else None
        self._coming = HeldRoles(
            generation=state.generation + 1,
            mode=override.mode,
            held_by=override.by if held else "",
            hold_reason=override.reason if held else "",
            roles={**_roles(state), **{move.node: Role(move.after) for move in moves}},
            until_s=self._on_the_wall(until_s),
            mode_after=state.mode if held and state.mode != HOLD else state.mode_after,
        )
        self._directory.write_held_roles(self._coming)
        override = msgspec.structs.replace(override, generation=state.generation)
        self._writer.feed(override)
        if self._coming is not None:  # it was not taken, which a Notice tells
            self._coming = None
            self._directory.write_held_roles(self._held())
            raise self._overtaken(override.generation)

    def _observe(self, now_s: float, event: Event, result: StepResult) -> None:
        """An observer of the writer: whoever wrote, the next life must know of it."""
        del now_s
        writes = [effect.write for effect in result.effects if isinstance(effect, SplitWritten)]
        if not writes:
            return
        self._last_by = writes[-1].by
        coming = self._coming
        if isinstance(event, Override) and (writes[-1].by, writes[-1].mode) == (
            event.by,
            event.mode,
        ):  # else the planner moved in the same step, and the override came too late
            self._coming = None
        is_so = self._held()
        if coming is not None and _alike(is_so, coming):
            return
        try:
            self._directory.write_held_roles(is_so)
        except EvctlError as error:
            self._writer.on_problem(f"a restart would not know of this change: {error}")

    def _held(self) -> HeldRoles:
        state = self._writer.state
        return HeldRoles(
            generation=state.generation,
            mode=state.mode,
            held_by=state.held_by,
            hold_reason=state.hold_reason,
            roles=_roles(state),
            until_s=self._on_the_wall(state.held_until_s),
            mode_after=state.mode_after,
        )

    def _on_the_wall(self, until_s: float | None) -> float | None:
        """A time on the writer's clock in seconds since the epoch."""
        return None if until_s is None else self._wall_s() + until_s - self._clock()

    # ------------------------------------------------------------ refusals

    def _expect(self, generation: int | None) -> None:
        present = self._writer.state.generation
        if generation is None or generation == present:
            return
        raise self._overtaken(generation)

    def _overtaken(self, generation: int | None) -> ConflictError:
        present = self._writer.state.generation
        return ConflictError(
            what="the split was not changed",
            why=f"{self._last_by or 'somebody'} changed it meanwhile: it is at generation "
            f"{present}, you saw {generation}",
            next_step="see what it is now, then decide again: evctl split get",
            code="EV-1351",
        )

    def _cooldown_left_s(self) -> float:
        """At the least: of a change that is under way, the cooldown has not begun."""
        state = self._writer.state
        if state.transitions.open is not None:
            return self._cooldown_s
        settled_s = state.planner.settled_s
        if settled_s is None:
            return 0.0
        return max(0.0, self._cooldown_s - (self._clock() - settled_s))

    def _too_soon(self, wanted: Split) -> RefusedError:
        state = self._writer.state
        change = state.transitions.open
        if change is not None:
            head = change.head
            why = f"a change by {head.by}, {head.before} -> {head.after}, has not settled"
            step = f"wait until it has, and {self._cooldown_s:.0f} s more"
        else:
            last = state.transitions.ended[-1] if state.transitions.ended else None
            ago_s = self._clock() - (state.planner.settled_s or 0.0)
            why = f"a change by {last.by if last else 'somebody'} settled {ago_s:.0f} s ago"
            step = f"wait {self._cooldown_left_s():.0f} s"
        return RefusedError(
            what=f"the split was not changed to {wanted}",
            why=f"{why}; the next one may come {self._cooldown_s:.0f} s after that",
            next_step=f"{step}, or repeat with --force",
            code="EV-1352",
        )


def _roles(state: ClusterState) -> dict[str, Role]:
    return {node.name: node.role for node in state.nodes.values()}


def _alike(one: HeldRoles, other: HeldRoles) -> bool:
    """But for the moment of a hold's end, which two readings of two clocks never give alike."""
    return msgspec.structs.replace(one, until_s=None) == msgspec.structs.replace(
        other, until_s=None
    )
