"""For how many requests one independent request stands, in a series that depends on itself.

Requests that meet in a queue are slow together, so 5,000 of them may tell as much as 50
independent ones. Integrated autocorrelation time: tau = 1 + 2 (rho_1 + rho_2 + ...), by which the
variance of a mean is larger than that of independent values. n / tau is the effective size.

Source: Sokal, Monte Carlo Methods in Statistical Mechanics (1996), section 3: the sum ends at the
first lag M >= 5 tau(M), where noise would take over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WINDOW: Final = 5.0
# A longer series is averaged in blocks first: its transform would take gigabytes.
MOST_POINTS: Final = 1 << 20


def autocorrelation_time(series: NDArray[Any], window: float = WINDOW) -> float:
    """Tau of a series in the order of time, in steps of it; 1 at least, and 1 if it is constant.

    >>> import numpy as np
    >>> noise = np.random.default_rng(1).normal(size=100_000)
    >>> ar = noise.copy()
    >>> for n in range(1, len(ar)):
    ...     ar[n] += 0.8 * ar[n - 1]
    >>> autocorrelation_time(noise) < 1.1 and 8 < autocorrelation_time(ar) < 10   # (1+.8)/(1-.8)
    True
    """
    import numpy as np

    values = np.asarray(series, dtype=np.float64)
    block = -(-len(values) // MOST_POINTS) if len(values) else 1
    spread = float(np.var(values)) if len(values) > 1 else 0.0
    if not spread > 0:
        return 1.0
    if block > 1:
        values = values[: len(values) // block * block].reshape(-1, block).mean(axis=1)
        # Var(mean) = spread tau / n, whether it is reckoned from values or from block means.
        return max(1.0, block * float(np.var(values)) / spread * _windowed(values, window))
    return max(1.0, _windowed(values, window))


def _windowed(values: NDArray[np.float64], window: float) -> float:
    import numpy as np
    from scipy.fft import irfft, next_fast_len, rfft

    centred = values - values.mean()
    size = next_fast_len(2 * len(centred), real=True)
    power = np.abs(rfft(centred, size)) ** 2
    correlation = irfft(power, size)[: len(centred)]
    if not correlation[0] > 0:
        return 1.0
    sums = 2 * np.cumsum(correlation / correlation[0]) - 1
    ended = np.flatnonzero(np.arange(len(sums)) >= window * sums)
    # Without an end the series is shorter than its memory; the largest sum is the careful reading.
    return float(sums[ended[0]] if len(ended) else sums.max())


LINKED: Final = 0.05
"""Bad requests closer than this part of their mean distance are one event."""


def cluster_time(bad: NDArray[np.bool_]) -> float:
    """For how many bad requests one independent event stands; 1 at least.

    With few events the correlations of a series say little, yet ten failures in a row are seen to
    be one event. Sizes of events are taken as geometric, so that v events of mean size s spread
    like 2 s - 1 times as many single ones; careful where they are all alike.

    >>> import numpy as np
    >>> apart, together = np.zeros(1000, dtype=bool), np.zeros(1000, dtype=bool)
    >>> apart[::100], together[500:510] = True, True
    >>> cluster_time(apart), cluster_time(together)
    (1.0, 19.0)
    """
    import numpy as np

    places = np.flatnonzero(bad)
    count = len(places)
    if count < 2:
        return 1.0
    new_event = np.diff(places) >= max(LINKED * len(bad) / count, 1.0 + 1e-9)
    sizes = np.bincount(np.concatenate([[0], np.cumsum(new_event)])).astype(np.float64)
    if len(sizes) == count:
        return 1.0
    return float(max(2 * sizes.mean() - 1, (sizes**2).sum() / sizes.sum(), 1.0))
