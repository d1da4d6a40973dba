"""Evidence that may be looked at as often as one likes: truncated-beta mixture e-values.

An e-value is a bet against a hypothesis that wins nothing on average where the hypothesis holds,
so that P(it ever reaches 1/alpha) <= alpha (Ville), whenever one looks and however one stops.
Here the share of bad requests is bet to lie below (pass) or above (fail) what is allowed, mixed
over a beta prior cut at the allowed share: 60 lines instead of a schedule of looks.

Source: Robbins (1970); Howard et al., arXiv 1810.08240, section 3, beta-binomial mixture.
"""

from __future__ import annotations

import math

# exp of it is 0 and JSON can hold it, unlike -inf.
NO_EVIDENCE = -1e300


def log_e_pass(bad: float, attempted: float, allowed_ratio: float) -> float:
    """Natural log of the evidence that fewer than `allowed_ratio` are bad; PASS at log(1/alpha).

    >>> log_e_pass(0, 1000, 0.01) > math.log(20) > log_e_pass(4, 1000, 0.01)
    True
    """
    from scipy.special import betainc

    return _log_e(bad, attempted, allowed_ratio, betainc)


def log_e_fail(bad: float, attempted: float, allowed_ratio: float) -> float:
    """Natural log of the evidence that more than `allowed_ratio` are bad; FAIL at log(1/alpha).

    `betaincc`, since 1 - betainc is nothing but rounding errors from a few 100,000 requests on.

    >>> log_e_fail(30, 1000, 0.01) > math.log(20) > log_e_fail(12, 1000, 0.01)
    True
    """
    from scipy.special import betaincc

    return _log_e(bad, attempted, allowed_ratio, betaincc)


def _log_e(bad: float, attempted: float, allowed_ratio: float, tail: object) -> float:
    from scipy.special import betaln

    if not 0 <= bad <= attempted or not 0 < allowed_ratio < 1:
        return NO_EVIDENCE
    # The prior's mean is the allowed share.
    a, b = 1.0, (1 - allowed_ratio) / allowed_ratio
    good = attempted - bad
    assert callable(tail)  # noqa: S101
    posterior, prior = (
        float(tail(bad + a, good + b, allowed_ratio)),
        float(tail(a, b, allowed_ratio)),
    )
    # Nothing of the posterior is on this side: whatever the exact value, it is no evidence for it.
    if not posterior > 0:
        return NO_EVIDENCE
    log_e = (
        float(betaln(bad + a, good + b))
        - float(betaln(a, b))
        + math.log(posterior)
        - math.log(prior)
        - bad * math.log(allowed_ratio)
        - good * math.log1p(-allowed_ratio)
    )
    return log_e if math.isfinite(log_e) else NO_EVIDENCE
