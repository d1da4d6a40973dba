"""A generator is believed up to the rate at which it was still on time."""

import numpy as np
import pytest

from loadtest.calibration import (
    STEP_SECONDS,
    WARMUP_SECONDS,
    Climbed,
    budget_of,
    climbed,
    rates,
    steps_of,
)
from loadtest.records import ROW, Records
from serving.judge.run import NEVER
from tests.loadtest.runs import job_of

MS = 1_000_000


def rows(step: int, count: int, late: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    begun = (WARMUP_SECONDS + step * STEP_SECONDS) * 1e9
    found = np.zeros(count, dtype=ROW)
    found["intended"] = begun + np.linspace(0, STEP_SECONDS * 1e9 - 1, count)
    found["ended"] = found["intended"] + MS
    found["ended"][:late] += 99 * MS
    found["ok"] = 1
    return found


def test_steps_count_what_was_late_failed_or_never_ended() -> None:
    first, second = rows(0, 100, 3), rows(1, 200, 0)
    second["ok"][:5] = 0
    second["ended"][7] = NEVER
    found = steps_of(Records(np.concatenate([first, second])), 10.0, None)
    assert [(step.requests, step.late) for step in found] == [(100, 3), (200, 6)]
    assert [step.rate_rps for step in found] == list(rates()[:2])


def test_a_step_that_is_not_over_is_left_out() -> None:
    both = Records(np.concatenate([rows(0, 100, 0), rows(1, 100, 0)]))
    until = round((WARMUP_SECONDS + 1.5 * STEP_SECONDS) * 1e9)
    assert len(steps_of(both, 10.0, until)) == 1


@pytest.mark.parametrize(("late", "too_much"), [(0, False), (2, False), (30, True)])
def test_a_few_late_requests_are_the_machines_hiccup(late: int, too_much: bool) -> None:
    assert Climbed(1.0, 200, late).too_much is too_much


def test_a_generator_that_was_never_on_time_is_believed_nowhere() -> None:
    assert climbed([Climbed(1.0, 100, 90), Climbed(2.0, 100, 90)]) == (0.0, True)
    assert climbed([]) == (0.0, False)


def test_a_hiccup_on_the_way_up_costs_nothing() -> None:
    steps = [Climbed(1.0, 100, 0), Climbed(2.0, 100, 20), Climbed(4.0, 100, 20)]
    assert climbed(steps) == (1.0, False)
    assert climbed([*steps, Climbed(8.0, 100, 1)]) == (8.0, False)


def test_the_budget_is_a_twentieth_of_the_strictest_promise() -> None:
    assert budget_of(job_of()) == 12.5
    assert budget_of(job_of("ranker")) == 2.5
    assert budget_of(job_of(latency_p99_ms=10.0)) == 0.5
