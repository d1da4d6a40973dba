"""Exact bounds of the share of bad requests, from counts.

Clopper and Pearson (1934): no approximation, so the promised error rate holds for small counts
and for rare events. Counts may be fractions, since dependent requests count for less than one.
"""

from __future__ import annotations

import math


def upper_bound(bad: float, attempted: float, alpha: float) -> float:
    """Share of bad requests that is exceeded with confidence `alpha` at most.

    Nothing bad among 299 just shows that fewer than 1% are:

    >>> upper_bound(0, 298, 0.05) < 0.01, upper_bound(0, 299, 0.05) < 0.01
    (False, True)
    """
    from scipy.special import betaincinv

    if not attempted > 0 or not bad < attempted:
        return 1.0
    return float(betaincinv(max(bad, 0.0) + 1, attempted - max(bad, 0.0), 1 - alpha))


def lower_bound(bad: float, attempted: float, alpha: float) -> float:
    """Share of bad requests that is fallen short of with confidence `alpha` at most.

    >>> lower_bound(6, 299, 0.05) > 0.01, lower_bound(7, 299, 0.05) > 0.01
    (False, True)
    """
    from scipy.special import betaincinv

    if not attempted > 0 or not bad > 0:
        return 0.0
    return float(betaincinv(min(bad, attempted), attempted - min(bad, attempted) + 1, alpha))


def smallest_sample(allowed_ratio: float, alpha: float) -> int:
    """Independent requests, none of them bad, that a PASS needs at least.

    Source: n with (1 - allowed_ratio)^n <= alpha; the published table for p95, p99 and p99.9:

    >>> [smallest_sample(1 - p, 0.05) for p in (0.95, 0.99, 0.999)]
    [59, 299, 2995]
    >>> [smallest_sample(1 - p, 0.01) for p in (0.95, 0.99, 0.999)]
    [90, 459, 4603]
    """
    return math.ceil(math.log(alpha) / math.log1p(-allowed_ratio))


def most_bad_that_passes(attempted: float, allowed_ratio: float, alpha: float) -> int | None:
    """Bad requests with which this many attempted still PASS; None where nothing would.

    >>> [most_bad_that_passes(n, 0.01, 0.05) for n in (298, 299, 1000, 2000, 5000, 10000, 50000)]
    [None, 0, 4, 12, 38, 83, 463]
    """
    if upper_bound(0, attempted, alpha) > allowed_ratio:
        return None
    low, high = 0, math.floor(attempted) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if upper_bound(middle, attempted, alpha) <= allowed_ratio:
            low = middle
        else:
            high = middle
    return low


def least_bad_that_fails(attempted: float, allowed_ratio: float, alpha: float) -> int | None:
    """Bad requests with which this many attempted FAIL; None where nothing would.

    >>> [least_bad_that_fails(n, 0.01, 0.05) for n in (299, 1000, 2000, 5000, 10000, 50000)]
    [7, 16, 29, 63, 118, 538]
    """
    low, high = 0, math.floor(attempted) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if lower_bound(middle, attempted, alpha) > allowed_ratio:
            high = middle
        else:
            low = middle
    return high if high <= attempted else None


def bound_rank(attempted: float, quantile: float, alpha: float) -> float | None:
    """Share of the sorted sample whose value bounds the quantile from above.

    The order statistic x(r) with the smallest r such that P(Binomial(n, quantile) <= r - 1) is
    1 - alpha at least; r / n comes back, so that it can be read off a dependent sample that is
    larger than its effective size. None where the sample is too small to bound the quantile.

    >>> bound_rank(298, 0.99, 0.05) is None, bound_rank(299, 0.99, 0.05)
    (True, 1.0)
    """
    most = most_bad_that_passes(attempted, 1 - quantile, alpha)
    return None if most is None else (math.floor(attempted) - most) / math.floor(attempted)


def enough(
    bad_share: float, attempted: float, allowed_ratio: float, alpha: float, limit: float = 1e12
) -> float | None:
    """Independent requests that would settle it if the share of bad ones stayed what it is.

    None where `limit` would not do: the share is too close to what is allowed.
    """

    def settled(size: float) -> bool:
        bad = bad_share * size
        return (
            upper_bound(bad, size, alpha) <= allowed_ratio
            or lower_bound(bad, size, alpha) > allowed_ratio
        )

    low, high = max(attempted, 1.0), max(2 * attempted, 2.0)
    while not settled(high):
        low, high = high, 2 * high
        if high > limit:
            return None
    while high - low > max(0.5, 1e-3 * high):
        middle = (low + high) / 2
        low, high = (low, middle) if settled(middle) else (middle, high)
    return high
