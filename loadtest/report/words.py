"""How numbers are written in every form of a report."""

from __future__ import annotations


def milliseconds(value: float | str | None) -> str:
    """A time; `never` for one that did not come.

    >>> milliseconds(12.3456), milliseconds(0.1234), milliseconds(1234.5), milliseconds(None)
    ('12.3 ms', '0.123 ms', '1,234 ms', 'never')
    """
    if value is None or isinstance(value, str):
        return "never"
    if value >= 100:
        return f"{value:,.0f} ms"
    return f"{value:.1f} ms" if value >= 10 else f"{value:.3g} ms"


def share(value: float | None) -> str:
    """A share in percent.

    >>> share(0.00123), share(None)
    ('0.123 %', 'unknown')
    """
    return "unknown" if value is None else f"{100 * value:.3f} %"


def count(value: int) -> str:
    """A whole number."""
    return f"{value:,}"


def rate(value: float | None) -> str:
    """A rate."""
    return "unknown" if value is None else f"{value:,.4g} rps"
