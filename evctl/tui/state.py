"""What a person chose in the interface, apart from what the cluster says."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Layout(StrEnum):
    """How the overview is laid out; each is live."""

    FULL = "full"
    STACK = "stack"
    TABS = "tabs"
    SUMMARY = "summary"


PANELS = ("nodes", "events", "refs", "pool", "planner", "split", "queues", "latency")
"""In the order in which `tab` goes through them where one is shown at a time."""

PERIODS_S = (0.25, 0.5, 1.0, 2.0, 5.0)


def layout_for(width: int, height: int) -> Layout:
    """The layout for a terminal of `width` x `height` cells. None is too small."""
    if width < 60 or height < 15:
        return Layout.SUMMARY
    if width < 80 or height < 20:
        return Layout.TABS
    return Layout.STACK if width < 120 else Layout.FULL


class Notice(msgspec.Struct, frozen=True):
    """One line said in the footer until `until_s`. level: ok, warn or fail."""

    text: str
    level: str
    until_s: float


class Ui(msgspec.Struct, frozen=True):
    """paused_s: when painting was paused. needle: the filter, "" for none. flag: with which a
    command means this cluster, ` -c NAME` or "" for the default one."""

    locked: bool = False
    read_only: bool = False
    protected: bool = False
    flag: str = ""
    paused_s: float | None = None
    period_s: float = 0.5
    sort: str = "name"
    descending: bool = False
    needle: str = ""
    panel: str = "nodes"
    events_until: int | None = None
    layout: Layout = Layout.FULL
    notice: Notice | None = None
    theme: str = "dark"
