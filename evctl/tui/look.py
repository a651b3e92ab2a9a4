"""Shapes and colours. A letter and a shape always say what a colour says too.

Colours follow Okabe and Ito, so that prefill and decode differ for every eye; lightness is chosen
per background. A style is a rich style string, "" for plain.
"""

from __future__ import annotations

import msgspec


class Glyphs(msgspec.Struct, frozen=True):
    """One character each, except arrow and plus_minus. into: between two roles of a node. spark:
    from low to high. stack: what blocks of a tier are, as in views/occupancy.py."""

    prefill: str = "■"
    decode: str = "◆"
    switching: str = "◧"
    unknown: str = "?"
    full: str = "━"
    empty: str = "─"
    spark: str = "▁▂▃▄▅▆▇"
    stack: str = "▓▒░×─"
    live: str = "●"
    stale: str = "◌"
    paused: str = "‖"
    arrow: str = "→"
    into: str = "→"
    dot: str = "·"
    dash: str = "—"
    cut: str = "…"
    focus: str = "▸"
    times: str = "×"
    down: str = "▾"
    up: str = "▴"
    plus_minus: str = "±"


UNICODE = Glyphs()
ASCII = Glyphs(
    prefill="#",
    decode="*",
    switching="%",
    full="#",
    empty=".",
    spark=".:-=+*#",
    stack="#=-x.",
    live="*",
    stale="!",
    paused="=",
    arrow="->",
    into=">",
    dot="-",
    dash="--",
    cut="~",
    focus=">",
    times="x",
    down="v",
    up="^",
    plus_minus="+-",
)


class Colours(msgspec.Struct, frozen=True):
    """A style for each meaning."""

    text: str = ""
    strong: str = "bold"
    faint: str = "dim"
    prefill: str = ""
    decode: str = ""
    switching: str = "bold"
    ok: str = ""
    warn: str = "bold"
    fail: str = "reverse bold"
    spark: str = ""
    key: str = "bold"
    badge: str = "reverse"


MONO = Colours()
DARK = Colours(
    text="#d5dbe3",
    strong="bold #f2f5f8",
    faint="#7f8b99",
    prefill="#56b4e9",
    decode="#e69f00",
    switching="bold #d98cb8",
    ok="#35c596",
    warn="bold #f0e442",
    fail="bold #ff7a66",
    spark="#8fa8c4",
    key="bold #9ecbff",
    badge="bold #101419 on #f0e442",
)
LIGHT = Colours(
    text="#20262e",
    strong="bold #000000",
    faint="#616b77",
    prefill="#00629b",
    decode="#9a4f00",
    switching="bold #8f3a6c",
    ok="#00684a",
    warn="bold #6d5200",
    fail="bold #b3261e",
    spark="#3f5873",
    key="bold #00477a",
    badge="bold #ffffff on #6d5200",
)
CONTRAST = Colours(
    text="#ffffff",
    strong="bold #ffffff",
    faint="#c8c8c8",
    prefill="bold #6ecbff",
    decode="bold #ffb52e",
    switching="bold #ff9ed8",
    ok="bold #4dffc0",
    warn="bold #fff34d",
    fail="bold #000000 on #ff8a75",
    spark="#ffffff",
    key="bold #a8d8ff",
    badge="bold #000000 on #fff34d",
)
SIXTEEN = Colours(
    text="default",
    strong="bold",
    faint="bright_black",
    prefill="bright_blue",
    decode="yellow",
    switching="bold magenta",
    ok="green",
    warn="bold bright_yellow",
    fail="bold red",
    spark="cyan",
    key="bold cyan",
    badge="reverse bold",
)
THEMES = {
    "dark": DARK,
    "light": LIGHT,
    "contrast": CONTRAST,
    "ansi": SIXTEEN,
    "mono": MONO,
}


class Look(msgspec.Struct, frozen=True):
    """How things are drawn."""

    glyphs: Glyphs = UNICODE
    colours: Colours = DARK

    def faded(self) -> Look:
        """All colours faint: for values that may no longer be true."""
        faint = self.colours.faint
        fields = dict.fromkeys(Colours.__struct_fields__, faint)
        return Look(self.glyphs, Colours(**fields))

    def role(self, role: str) -> tuple[str, str]:
        """Shape and style of a role, "P" or "D"; anything else is unknown."""
        if role == "P":
            return self.glyphs.prefill, self.colours.prefill
        if role == "D":
            return self.glyphs.decode, self.colours.decode
        return self.glyphs.unknown, self.colours.warn

    def state(self, state: str) -> str:
        """Style of a node's state."""
        known = {"ok": self.colours.ok, "late": self.colours.warn, "lost": self.colours.fail}
        return known.get(state, self.colours.warn)
