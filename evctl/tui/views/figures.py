"""Figures as text: short, with units, `-` for what is absent (never 0)."""

from __future__ import annotations

from collections.abc import Sequence

ABSENT = "-"


def age(seconds: float) -> str:
    """0.4s, 14s, 12m, 3h, 2d."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    if seconds < 99.5:
        return f"{seconds:.0f}s"
    if seconds < 5970:
        return f"{seconds / 60:.0f}m"
    return f"{seconds / 3600:.0f}h" if seconds < 172_800 else f"{seconds / 86_400:.0f}d"


def seconds(value: float | None) -> str:
    """A wait without its unit, three digits: 0.12, 1.53, 24.1, 310."""
    if value is None:
        return ABSENT
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def share(value: float) -> str:
    """81%."""
    return f"{100 * min(1.0, max(0.0, value)):.0f}%"


def count(value: int) -> str:
    """950, 12.3k, 4.1M, 2.0G."""
    if value < 10_000:
        return str(value)
    return _scaled(value, "kMGT")


def size(value: int) -> str:
    """In bytes: 950 B, 12.3 kB, 59.0 MB, 1.2 TB."""
    return f"{value} B" if value < 1000 else _scaled(value, (" kB", " MB", " GB", " TB"))


def _scaled(value: float, units: Sequence[str]) -> str:
    """With one decimal, in the first unit that leaves fewer than four digits before it."""
    scaled, at = value / 1000, 0
    while scaled >= 999.95 and at < len(units) - 1:
        scaled, at = scaled / 1000, at + 1
    return f"{scaled:.1f}{units[at]}"


def duration(value: float | None) -> str:
    """With its unit: 0.3 ms, 24 ms, 1.53 s, 310 s."""
    if value is None:
        return ABSENT
    if value < 0.9995:
        return f"{1000 * value:.1f} ms" if value < 0.00995 else f"{1000 * value:.0f} ms"
    return f"{seconds(value)} s"


def rate(value: float) -> str:
    """2.41, 36.0, 812."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def number_of(value: int, noun: str) -> str:
    """1 node, 3 nodes."""
    return f"{value} {noun}" if value == 1 else f"{value} {noun}s"
