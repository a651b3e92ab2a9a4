"""What every view is given."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo

import msgspec
from rich.text import Text

from evctl.tui.look import Look
from evctl.tui.model import Link, Model
from evctl.tui.state import Ui


class Scene(msgspec.Struct, frozen=True):
    """model: what is shown, older than `live` while paused. now_s: of the same clock as theirs.

    zone: in which times of day are written; None for the machine's own.
    """

    model: Model
    live: Model
    ui: Ui
    look: Look
    now_s: float
    zone: tzinfo | None = None

    @property
    def shown_s(self) -> float:
        """The moment that the panels show."""
        return self.now_s if self.ui.paused_s is None else self.ui.paused_s

    @property
    def stale(self) -> bool:
        """Whether what is shown may be wrong by now."""
        return self.live.link(self.now_s) is Link.STALE

    @property
    def value_look(self) -> Look:
        """For values of the cluster: faded once they may be wrong."""
        return self.look.faded() if self.stale else self.look


def time_of_day(epoch_s: float, zone: tzinfo | None) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).astimezone(zone).strftime("%H:%M:%S")


def lines(*rows: Text) -> Text:
    """Rows on top of each other, never wrapped."""
    return Text("\n", no_wrap=True, end="").join(rows)


def cut(text: str, width: int, look: Look) -> str:
    """At most `width` characters, with a mark where something is missing."""
    if len(text) <= width:
        return text
    mark = look.glyphs.cut
    return text[: max(0, width - len(mark))] + mark[:width]


def shortened(text: Text, width: int, look: Look) -> Text:
    """The same for styled text, which is changed."""
    if len(text) > width:
        text.truncate(max(0, width - len(look.glyphs.cut)))
        text.append(look.glyphs.cut[:width], look.colours.faint)
    return text


def safe(text: str, look: Look) -> str:
    """Text from outside, fit for the terminal: no control characters, ASCII where need be."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    if look.glyphs.cut != "~":
        return printable
    return printable.replace("→", "->").encode("ascii", "replace").decode("ascii")


def waiting(look: Look) -> Text:
    """Before the first snapshot."""
    return Text(f"waiting for the first snapshot{look.glyphs.cut}", look.colours.faint)
