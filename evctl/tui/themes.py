"""Colours of surfaces, borders and cursors. Those of values are in `look`, under the same name."""

from __future__ import annotations

from textual.theme import BUILTIN_THEMES, Theme

from evctl.tui.look import ASCII, THEMES, UNICODE, Look
from evctl.tui.terminal import Terminal

NAMES = tuple(THEMES)


def theme_name(name: str) -> str:
    return f"evctl-{name}"


def is_native(name: str) -> bool:
    """Whether a theme leaves colours to the terminal; a cursor is then reversed."""
    return name in {"ansi", "mono"}


def look_for(name: str, terminal: Terminal) -> Look:
    return Look(ASCII if terminal.ascii else UNICODE, THEMES[name])


def _theme(name: str, background: str, text: str, line: str, focus: str, cursor: str) -> Theme:
    return Theme(
        name=theme_name(name),
        primary=focus,
        secondary=line,
        accent=focus,
        warning="#c9a100",
        error="#d0453a",
        success="#2aa37c",
        foreground=text,
        background=background,
        surface=background,
        panel=background,
        boost=background,
        dark=name != "light",
        variables={"line": line, "focus": focus, "cursor": cursor, "cursor-text": "auto"},
    )


def _native(name: str, line: str, focus: str, cursor: str, cursor_text: str) -> Theme:
    """The terminal's own sixteen colours, or none."""
    return Theme(
        name=theme_name(name),
        ansi=True,
        primary=focus,
        secondary=line,
        accent=focus,
        warning="ansi_yellow",
        error="ansi_red",
        success="ansi_green",
        foreground="ansi_default",
        background="ansi_default",
        surface="ansi_default",
        panel="ansi_default",
        boost="ansi_default",
        variables={
            **BUILTIN_THEMES["ansi-dark"].variables,
            "line": line,
            "focus": focus,
            "cursor": cursor,
            "cursor-text": cursor_text,
        },
    )


ALL = (
    _theme("dark", "#101419", "#d5dbe3", "#3a4552", "#6fb1e8", "#26384a"),
    _theme("light", "#fbfbf8", "#20262e", "#b4bcc5", "#00629b", "#cfe0ee"),
    _theme("contrast", "#000000", "#ffffff", "#bdbdbd", "#fff34d", "#1f4f7a"),
    _native("ansi", "ansi_bright_black", "ansi_cyan", "ansi_blue", "ansi_bright_white"),
    _native("mono", "ansi_default", "ansi_default", "ansi_default", "ansi_default"),
)
