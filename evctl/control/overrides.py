"""Writes to split and mode: who may, when, and what it would do."""

from __future__ import annotations

import time
from collections.abc import Callable

from evctl.control.statedir import HeldRoles, StateDirectory
from evctl.control.writer import Writer
from evctl.core.errors import ConflictError, RefusedError, UsageError
from evctl.core.events import Override
from evctl.core.split import Role, Split, parse_split
from evctl.core.status import Move, SplitChange
from evctl.policy.transition import MODES, plan_moves


class Overrides:
    """Checks a write before the writer gets it, and keeps it over a restart.

    A cluster's first change is free; after it, changes are cooldown_s apart unless forced. What is
    so already is not written again: no generation, no line of history. wall_s: seconds since the
    epoch, for people.
    """

    def __init__(
        self,
        writer: Writer,
        directory: StateDirectory,
        clock: Callable[[], float],
        cooldown_s: float,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._writer = writer
        self._directory = directory
        self._clock = clock
        self._cooldown_s = cooldown_s
        self._wall_s = wall_s
        self._changed_s: float | None = None
        self._last_by = writer.state.held_by

    def set_split(
        self,
        split: str,
        *,
        by: str,
        reason: str = "",
        generation: int | None = None,
        plan: bool = False,
        force: bool = False,
    ) -> SplitChange:
        """Change the split and hold it. plan: only say what it would do, and whether it would be
        refused now.

        Raises UsageError (EV-1102, 1103) for a split that cannot be, ConflictError (EV-1351)
        when `generation` is not the present one, RefusedError (EV-1352) in the cooldown,
        EvctlError (EV-1314) when it cannot be kept; nothing changed then.
        """
        state = self._writer.state
        wanted = parse_split(split)
        moves = plan_moves(state, wanted)
        self._expect(generation)
        before = str(state.split)
        unchanged = not moves and self._is_so("hold", reason)
        left_s = self._cooldown_left_s() if moves else 0.0
        if not plan and not unchanged:
            if left_s and not force:
                raise self._too_soon(wanted, left_s)
            override = Override("hold", str(wanted), by, reason, forced=bool(left_s))
            self._apply(override, moves)
            if moves:
                self._changed_s = self._clock()
        return SplitChange(
            before,
            str(wanted),
            moves,
            state.generation,
            applied=not plan and not unchanged,
            unchanged=unchanged,
            refused_until_s=self._wall_s() + left_s if plan and left_s else None,
            cooldown_s=self._cooldown_s,
        )

    def set_mode(self, mode: str, *, by: str, reason: str = "") -> None:
        """hold: the present split stays. advise: it may be changed by others again.

        Raises UsageError (EV-1353) for another mode, EvctlError (EV-1314) as `set_split`.
        """
        if mode not in MODES:
            raise UsageError(
                what=f"no mode is named {mode!r}",
                why=f"modes are {', '.join(MODES)}",
                next_step="choose one of them",
                code="EV-1353",
            )
        if self._is_so(mode, reason):
            return
        split = str(self._writer.state.split) if mode == "hold" else ""
        self._apply(Override(mode, split, by, reason))

    def _is_so(self, mode: str, reason: str) -> bool:
        """Whether the mode is that one, for that reason. Advising keeps no reason, so one that is
        given is news."""
        state = self._writer.state
        return state.mode == mode and state.hold_reason == reason

    def _apply(self, override: Override, moves: tuple[Move, ...] = ()) -> None:
        """On disk first: what cannot be kept is not done, so that no restart undoes it.

        Raises EvctlError (EV-1314); nothing changed then.
        """
        state = self._writer.state
        held = override.mode == "hold"
        coming = HeldRoles(
            generation=state.generation + 1,
            mode=override.mode,
            held_by=override.by if held else "",
            hold_reason=override.reason if held else "",
            roles={**self._roles(), **{move.node: Role(move.after) for move in moves}},
        )
        self._directory.write_held_roles(coming)
        self._writer.feed(override)
        self._last_by = override.by
        if (is_so := self._held()) != coming:
            self._directory.write_held_roles(is_so)

    def _roles(self) -> dict[str, Role]:
        return {node.name: node.role for node in self._writer.state.nodes.values()}

    def _held(self) -> HeldRoles:
        state = self._writer.state
        return HeldRoles(
            state.generation, state.mode, state.held_by, state.hold_reason, self._roles()
        )

    def _expect(self, generation: int | None) -> None:
        present = self._writer.state.generation
        if generation is None or generation == present:
            return
        raise ConflictError(
            what="the split was not changed",
            why=f"{self._last_by or 'somebody'} changed it meanwhile: it is at generation "
            f"{present}, you saw {generation}",
            next_step="look again, then repeat with the present generation: evctl split get",
            code="EV-1351",
        )

    def _cooldown_left_s(self) -> float:
        if self._changed_s is None:
            return 0.0
        return max(0.0, self._cooldown_s - (self._clock() - self._changed_s))

    def _too_soon(self, wanted: Split, left_s: float) -> RefusedError:
        return RefusedError(
            what=f"the split was not changed to {wanted}",
            why=f"{self._last_by} changed it {self._cooldown_s - left_s:.0f} s ago, and changes "
            f"are {self._cooldown_s:.0f} s apart",
            next_step=f"wait {left_s:.0f} s, or repeat with --force",
            code="EV-1352",
        )
