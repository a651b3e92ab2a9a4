"""What an operator may set of the planner."""

from __future__ import annotations

import msgspec


class PlannerConfig(msgspec.Struct, frozen=True):
    """Design, section 5; as it stands here, the paper's rule and no more.

    window_s: a decision each, from `slices` slices; cooldown_s: no move for so long after one has
    settled. least_requests: a slice with fewer is thin. least_prefill, least_decode: nodes that
    either phase keeps. pending_s: a move that has not settled by then is waited for no longer.

    Plus, each on its own: closed (forecast by the closed network, not by the slower phase);
    sound (batch means and Student's t, not two standard errors) with error_rate a window where
    another split is exactly as good (0 to 2 % are measured where it is 1 to 5 % worse),
    least_effect of a move worth making and evidence_windows that count at most; early (it may
    decide before the window's end); probation (a move whose waits are not as forecast is taken
    back); ttft_target_s (splits that are expected to miss it at the 95th percentile are not
    chosen), 0: none.
    """

    window_s: float = 600.0
    slices: int = 10
    cooldown_s: float = 120.0
    least_requests: int = 20
    least_prefill: int = 1
    least_decode: int = 1
    pending_s: float = 600.0
    closed: bool = False
    sound: bool = False
    early: bool = False
    probation: bool = False
    ttft_target_s: float = 0.0
    error_rate: float = 0.1
    least_effect: float = 0.02
    evidence_windows: int = 3

    @property
    def slice_s(self) -> float:
        return self.window_s / self.slices


PAPER = PlannerConfig()


def plus(config: PlannerConfig = PAPER) -> PlannerConfig:
    """The same with what goes beyond the paper, but for the target, which is the operator's."""
    return msgspec.structs.replace(config, closed=True, sound=True, early=True, probation=True)
