"""Times: ISO-8601 UTC for programs, relative for people; spans such as 5m."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from evctl.core.errors import UsageError

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def iso(time_s: float) -> str:
    text = datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def ago(time_s: float) -> str:
    """`3 min ago`."""
    age_s = max(0.0, time.time() - time_s)
    for size_s, unit in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if age_s >= size_s:
            return f"{age_s / size_s:.0f} {unit} ago"
    return f"{age_s:.0f} s ago"


def span(text: str) -> float:
    """Seconds of `90s`, `30m`, `2h`, `1d`, or a sum such as `1h30m`.

    Raises UsageError (EV-1831) for anything else, and for 0.
    """
    if re.fullmatch(r"(?:\d+(?:\.\d+)?[smhd])+", text.strip()):
        parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
        if (total_s := sum(float(count) * _UNITS_S[unit] for count, unit in parts)) > 0:
            return total_s
    raise UsageError(
        what=f"cannot read {text!r} as a span of time",
        why="a span is a number above 0 and one of s, m, h, d",
        next_step="write 90s, 30m, 2h or 1h30m",
        code="EV-1831",
    )


def left(until_s: float) -> str:
    """`12 min`: from now until a moment, in seconds since the epoch."""
    left_s = max(0.0, until_s - time.time())
    for size_s, unit in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if left_s >= 2 * size_s:
            return f"{left_s / size_s:.0f} {unit}"
    return f"{left_s:.0f} s"


def moment(text: str) -> float:
    """Seconds since the epoch of `5m` (ago) or an ISO time, UTC unless it says otherwise.

    Raises UsageError (EV-1809).
    """
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip()):
        return time.time() - float(match[1]) * _UNITS_S[match[2]]
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise UsageError(
            what=f"cannot read {text!r} as a time",
            why="it is neither a span such as 5m nor an ISO time",
            next_step="write 30s, 5m, 2h, 1d or 2026-01-31T12:00:00",
            code="EV-1809",
        ) from error
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
