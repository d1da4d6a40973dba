"""What is shown of times is never better than what was measured, and every request is in it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.records import DROPPED, Records
from loadtest.report.summary import (
    MOST_US,
    Histogram,
    cdf_of,
    latencies,
    percentiles_ms,
    series_of,
)
from serving.judge.run import NEVER
from tests.loadtest.runs import MS, bad, job_of, rows_of

TIMES = st.one_of(st.integers(0, 10 * MOST_US * 1000), st.just(NEVER))


# P1, P12, P13.


@given(st.lists(TIMES, min_size=1, max_size=60), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_shown_quantile_is_at_most_a_thousandth_above_the_true_one_and_never_below(
    times: list[int], quantile: float
) -> None:
    histogram = Histogram()
    histogram.record(np.array(times, dtype=np.int64))
    assert histogram.count == len(times)
    rank = max(int(np.ceil(quantile * len(times) - 1e-9)), 1)
    true = sorted(times)[rank - 1]
    shown = histogram.quantile_ms(quantile)
    if true // 1000 > MOST_US:
        assert shown is None
    else:
        assert shown is not None
        assert shown * 1e6 >= true - 1000
        assert shown * 1e6 <= max(true, 1000) * 1.002 + 1000


@pytest.mark.parametrize("ms", [104.9, 1049.0, 10499.0, 0.4])
def test_a_time_above_a_round_limit_is_not_shown_at_it(ms: float) -> None:
    """Rounded to two digits these are 100, 1000, 10000 and 0."""
    shown = percentiles_ms(np.full(1000, round(ms * MS)))["p99"]
    assert shown == pytest.approx(ms, rel=0.002)


def test_failures_are_slower_than_everything() -> None:
    rows = rows_of(job_of(seconds=30))
    worse = bad(rows, np.arange(0, len(rows), 20), 503)
    found = percentiles_ms(latencies(Records(worse)))
    assert found["p90"] == pytest.approx(20.1, rel=0.01)
    assert found["p99"] is None
    assert found["max"] is None


def test_nothing_has_no_percentile() -> None:
    assert set(percentiles_ms(np.empty(0, dtype=np.int64)).values()) == {None}
    assert cdf_of(np.empty(0, dtype=np.int64)) == ()


def test_the_curve_ends_where_answers_end() -> None:
    times = np.array([*range(1, 991), *[NEVER] * 10], dtype=np.int64) * 1
    found = cdf_of(times)
    assert found[-1][0] <= 0.99
    shares = [share for share, _ in found]
    assert shares == sorted(shares)


def test_the_series_counts_every_request_where_it_was_due() -> None:
    job = job_of(seconds=20)
    rows = bad(rows_of(job, 1500.0), slice(400, 420), DROPPED, sent=NEVER, ended=NEVER)
    found = series_of(Records(rows), job.schedule, job.schedule.until)
    assert sum(one.offered for one in found) == len(job.schedule)
    assert sum(one.sent for one in found) == len(rows) - 20
    assert sum(one.answered for one in found) == len(rows) - 20
    assert sum(one.failed for one in found) == 20
    assert [one.phase for one in found[:6]] == ["warmup"] * 5 + ["measured"]
    # Little's law: 40 a second for 1.5 s are 60 at once.
    middle = [one.in_flight for one in found[8:18]]
    assert np.mean(middle) == pytest.approx(60, rel=0.15)


def test_a_long_run_has_no_more_slices_than_a_picture_can_show() -> None:
    job = job_of(seconds=2000, peak_rps=2.0)
    found = series_of(Records(rows_of(job)), job.schedule, job.schedule.until)
    assert len(found) <= 241
    assert sum(one.offered for one in found) == len(job.schedule)
