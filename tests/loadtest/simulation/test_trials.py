"""The judge is judged: how often it passes a service that is exactly at its limit.

With 200 runs of a judge that is wrong in 5% of them, more than 20 are wrong once in a thousand
times; of a judge that is wrong in 15%, in 97 of a hundred. `python -m loadtest.bench.judge` does
the same with more services and runs, and says how much it takes to FAIL a bad one.
"""

import pytest
from scipy.stats import binom

from loadtest.simulation.others import RULES
from loadtest.simulation.queues import Service
from loadtest.simulation.trials import ALLOWED, GALLEY, Trial, limits_of, run_trial
from serving.judge.verdict import Answer

RUNS = 200
MOST_WRONG = int(binom.ppf(0.999, RUNS, 0.05)) / RUNS


@pytest.mark.parametrize(
    ("service", "size"),
    [
        (Service("iid"), 5_000),
        (Service("queue", 0.5), 5_000),
        (Service("queue", 0.7), 5_000),
        (Service("queue", 0.85), 5_000),
        (Service("queue", 0.92), 5_000),
        (Service("bursts", 0.7), 5_000),
        (Service("drift", 0.85), 5_000),
        # A run must be long against what it is to show: here it holds ten spells.
        (Service("slow spells", 0.7), 20_000),
        (Service("failing spells"), 20_000),
    ],
    ids=lambda value: value.name if isinstance(value, Service) else str(value),
)
def test_a_service_at_its_limit_passes_in_one_of_twenty_runs_at_most(
    service: Service, size: int
) -> None:
    found = run_trial(Trial(service, size, RUNS, truth_requests=1_000_000))
    assert found.share(GALLEY, ALLOWED, Answer.PASS) <= MOST_WRONG
    # A burst of failures that no queue remembers FAILs the run in which it fell.
    if service.kind != "failing spells":
        assert found.share(GALLEY, ALLOWED, Answer.FAIL) <= MOST_WRONG
    # The traces are hard: whoever reads the sample's own quantile is wrong every other time.
    assert found.share("sample p99", ALLOWED, Answer.PASS) > 0.3


def test_an_interval_for_independent_requests_is_wrong_in_a_busy_queue_and_the_judge_is_not() -> (
    None
):
    found = run_trial(Trial(Service("queue", 0.92), 5_000, RUNS, truth_requests=1_000_000))
    assert found.share("GuideLLM's interval", ALLOWED, Answer.PASS) > 0.4
    assert found.share(GALLEY, ALLOWED, Answer.PASS) <= MOST_WRONG


@pytest.mark.parametrize("service", [Service("iid"), Service("queue", 0.7)], ids=lambda s: s.name)
def test_looking_ten_times_does_not_make_a_service_at_its_limit_pass(service: Service) -> None:
    looks = tuple(range(1_000, 10_001, 1_000))
    trial = Trial(service, 10_000, 100, truth_requests=1_000_000)
    found = run_trial(trial, others=False, looks=looks)
    most = int(binom.ppf(0.999, 100, 0.05)) / 100
    assert found.share(GALLEY, ALLOWED, Answer.PASS) <= most
    assert found.share(GALLEY, ALLOWED, Answer.FAIL) <= most


def test_services_well_within_and_well_beyond_the_limit_get_their_verdict() -> None:
    found = run_trial(Trial(Service("queue", 0.7), 20_000, 50, (0.001, 0.05)), others=False)
    assert found.share(GALLEY, 0.001, Answer.PASS) > 0.8
    assert found.share(GALLEY, 0.05, Answer.FAIL) > 0.8


def test_the_same_seed_gives_the_same_runs_and_another_seed_others() -> None:
    trial = Trial(Service("queue", 0.7), 500, 3, truth_requests=10_000)
    other = Trial(Service("queue", 0.7), 500, 3, truth_requests=10_000, seed=2)
    assert limits_of(trial) == limits_of(trial) != limits_of(other)
    assert run_trial(trial).tallies == run_trial(trial).tallies


def test_no_samples_pass_k6_and_two_digits_pass_locust() -> None:
    import numpy as np

    assert RULES["k6 p(99)<"](np.array([]), 500) is Answer.PASS
    for true_ms, limit_ms in ((104.9, 100), (1049, 1000), (10_499, 10_000)):
        times = np.full(1000, true_ms)
        assert RULES["Locust's p99"](times, limit_ms) is Answer.PASS
        assert RULES["sample p99"](times, limit_ms) is Answer.FAIL
