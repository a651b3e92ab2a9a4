"""Student's t distribution for whole degrees of freedom, by its finite series.

Abramowitz and Stegun 26.7.3 and 26.7.4. Exact to rounding; no library is needed, and the same
processor always gives the same bits.
"""

from __future__ import annotations

import math

MOST_DEGREES = 1000
"""More are as good as these: the quantile is within 0.1 % of the normal one."""
_STEPS = 100


def upper_tail(value: float, degrees: int) -> float:
    """P(T > value) for value >= 0. Of small tails, 1e-13 is noise."""
    angle = math.atan(value / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    square = cosine * cosine
    odd = degrees % 2 == 1
    term = cosine if odd else 1.0
    total = term if degrees > 1 else 0.0
    for k in range(3 if odd else 2, degrees - 1, 2):
        term *= square * (k - 1) / k
        total += term
    inside = (angle + sine * total) * 2.0 / math.pi if odd else sine * total
    return max(0.0, (1.0 - inside) / 2.0)


def quantile(tail: float, degrees: int) -> float:
    """The value that T exceeds with probability `tail`, 0 < tail < 0.5."""
    degrees = min(degrees, MOST_DEGREES)
    low, high = 0.0, 1.0
    while upper_tail(high, degrees) > tail:
        low, high = high, 2.0 * high
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        if upper_tail(middle, degrees) > tail:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0
