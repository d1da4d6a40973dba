"""Numbers as they were written: 0.1 x 3 is 0.3, and 5 replicas never become 6 by rounding."""

from __future__ import annotations

from fractions import Fraction

TIMES = "\N{MULTIPLICATION SIGN}"
OVER = "\N{DIVISION SIGN}"
MINUS = "\N{MINUS SIGN}"


def exact(number: float) -> Fraction:
    """The decimal that was written, and not the binary number nearest to it.

    >>> exact(0.1) * 3 == exact(0.3), 0.1 * 3 == 0.3
    (True, False)
    """
    return Fraction(repr(number))


def spelled_number(number: float | Fraction) -> str:
    """A number as people read it: thousands apart, no more digits than it has, four at most.

    >>> [spelled_number(n) for n in (2000.0, 0.05, 6.25, Fraction(20, 3))]
    ['2,000', '0.05', '6.25', '6.667']
    """
    value = float(number)
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:.4g}" if abs(value) < 1 else f"{value:,.3f}".rstrip("0").rstrip(".")
