"""What the terminal can show, read off the environment once at start."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Terminal(msgspec.Struct, frozen=True):
    """ascii: no character outside ASCII. mono: no colour. remote: over SSH, so paint less."""

    ascii: bool = False
    mono: bool = False
    remote: bool = False

    @property
    def paint_period_s(self) -> float:
        return 1.0 if self.remote else 0.5


def detect(environ: Mapping[str, str]) -> Terminal:
    """The terminal behind `environ`. EVCTL_GLYPHS=ascii|unicode overrules the locale."""
    wanted = environ.get("EVCTL_GLYPHS", "")
    return Terminal(
        ascii=wanted == "ascii" or (wanted != "unicode" and not _is_utf8(environ)),
        mono=bool(environ.get("NO_COLOR")) or environ.get("TERM") in {"dumb", "vt100"},
        remote=bool(environ.get("SSH_CONNECTION") or environ.get("SSH_TTY")),
    )


def _is_utf8(environ: Mapping[str, str]) -> bool:
    category = environ.get("LC_CTYPE", "")
    # Python puts C.UTF-8 there itself where the locale is C (PEP 538): look behind it.
    coerced = category == "C.UTF-8" and environ.get("LANG", "") in {"", "C", "POSIX"}
    if coerced and not environ.get("LC_ALL"):
        return False
    locale = environ.get("LC_ALL") or category or environ.get("LANG", "")
    return "utf8" in locale.lower().replace("-", "")
