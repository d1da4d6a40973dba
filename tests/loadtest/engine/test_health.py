"""A generator that was too slow says so."""

import time

import gevent
import pytest

from loadtest.engine.health import Watch, busiest, p99_ms


def test_a_stall_counts_for_as_long_as_it_lasted() -> None:
    watch = Watch()
    watch.begin()
    gevent.sleep(0.05)
    time.sleep(0.3)  # what blocks the whole process
    gevent.sleep(0.05)
    health = watch.stop()
    assert health.loop_lag_p99_ms is not None
    assert health.loop_lag_p99_ms > 200


def test_a_process_that_computes_all_the_time_is_busy_and_one_that_sleeps_is_not() -> None:
    watch = Watch()
    watch.begin()
    end = time.process_time() + 0.2
    while time.process_time() < end:
        gevent.sleep(0)
    busy = watch.stop().cpu_ratio
    watch.begin()
    gevent.sleep(0.2)
    idle = watch.stop().cpu_ratio
    assert busy is not None
    assert idle is not None
    assert idle < busy


def test_nothing_measured_is_nothing_known() -> None:
    assert busiest([]) is None
    assert busiest([(1.0, 1.0)]) is None
    assert p99_ms([]) is None


@pytest.mark.parametrize(
    ("samples", "share"),
    [
        ([(0.0, 0.0), (2.0, 1.0)], 0.5),
        # One busy second is no busy generator, five are.
        ([(float(n), n * 0.2 + (n > 5) * 0.8) for n in range(11)], 0.36),
        ([(float(n), min(n, 5) * 1.0) for n in range(11)], 1.0),
    ],
)
def test_the_busiest_five_seconds_count(samples: list[tuple[float, float]], share: float) -> None:
    assert busiest(samples) == pytest.approx(share)
