"""What other tools' rules say of the same traces, so that one table compares them.

Each rule is written here from its tool's source; none of the tools is run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from serving.judge.verdict import Answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Sorted = NDArray[np.float64]


def sample_quantile(sorted_ms: Sorted, limit_ms: float) -> Answer:
    """The sample's own p99 against the limit: what most scripts do."""
    found = sorted_ms[math.ceil(0.99 * len(sorted_ms)) - 1]
    return Answer.PASS if found <= limit_ms else Answer.FAIL


def locust(sorted_ms: Sorted, limit_ms: float) -> Answer:
    """Locust's p99 of times rounded to two digits.

    Source: locust 2.47, stats.py (bucket_response_time, calculate_response_time_percentile)
    """
    steps = np.select(
        [sorted_ms < 100, sorted_ms < 1000, sorted_ms < 10_000], [1.0, 10.0, 100.0], 1000.0
    )
    rounded = np.round(sorted_ms / steps) * steps
    below = int(0.99 * len(rounded))
    found = rounded[max(below - 1, 0)] if below else 0.0
    return Answer.PASS if found <= limit_ms else Answer.FAIL


def k6(sorted_ms: Sorted, limit_ms: float) -> Answer:
    """The threshold `p(99)<limit`; no samples are 0, which is below any limit.

    Source: k6 v2, metrics/sink.go (TrendSink.P)
    """
    if not len(sorted_ms):
        return Answer.PASS
    found = float(np.quantile(sorted_ms, 0.99, method="linear"))
    return Answer.PASS if found < limit_ms else Answer.FAIL


def guidellm(sorted_ms: Sorted, limit_ms: float) -> Answer:
    """The two-sided 95% interval from order statistics of independent requests.

    GuideLLM prints it and decides nothing; read here as one would: within is PASS, beyond is FAIL.

    Source: guidellm 0.8.1, utils/statistics.py (quantile_confidence_interval)
    """
    from scipy.stats import binom

    count = len(sorted_ms)
    if count < math.log(0.025) / math.log(0.99):
        return Answer.INCONCLUSIVE
    low, high = int(binom.ppf(0.025, count, 0.99)) - 1, int(binom.ppf(0.975, count, 0.99))
    if sorted_ms[min(high, count - 1)] <= limit_ms:
        return Answer.PASS
    return Answer.FAIL if sorted_ms[max(low, 0)] > limit_ms else Answer.INCONCLUSIVE


RULES: Final[dict[str, Callable[[Sorted, float], Answer]]] = {
    "sample p99": sample_quantile,
    "Locust's p99": locust,
    "k6 p(99)<": k6,
    "GuideLLM's interval": guidellm,
}
