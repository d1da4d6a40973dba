"""The rate that is told is one that was confirmed, and never beyond the truth."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.maximum import CONFIRMATIONS, LOWEST, MOST_PROBES, WIDTH, Search
from loadtest.simulation.queues import SERVERS, Service, simulate
from serving.judge.judging import judge
from serving.judge.measuring import measure
from serving.judge.objectives import quantile_objective
from serving.judge.run import run_of_seconds
from serving.judge.verdict import Answer


def ended(search: Search, truth: float) -> Search:
    while (following := search.next) is not None:
        search = search.told(Answer.PASS if following[0] <= truth else Answer.FAIL)
    return search


@given(st.floats(0.2, 5000), st.floats(1, 1000))
def test_a_clear_answer_is_found_within_the_width(truth: float, start: float) -> None:
    found = ended(Search(start), truth).confirmed_rps
    if truth < start * LOWEST:
        assert found is None
    elif truth < start * 2 ** (MOST_PROBES - 10):
        assert found is not None
        assert truth / (1 + WIDTH) / 1.001 <= found <= truth or found < truth


@given(st.lists(st.sampled_from(list(Answer)), max_size=60), st.floats(1, 1000))
def test_whatever_the_verdicts_it_ends_and_tells_only_what_passed_twice(
    answers: list[Answer], start: float
) -> None:
    search = Search(start)
    for answer in [*answers, *[Answer.INCONCLUSIVE] * 60]:
        if search.next is None:
            break
        search = search.told(answer)
    assert search.next is None
    confirmations = [probe for probe in search.probes if probe.confirms]
    assert len(confirmations) <= CONFIRMATIONS
    if search.confirmed_rps is not None:
        assert confirmations[-1].answer is Answer.PASS
        lowest_failure = search.failed_rps or np.inf
        assert search.confirmed_rps <= lowest_failure


@pytest.mark.parametrize("answer", [Answer.INCONCLUSIVE, Answer.INVALID, Answer.FAIL])
def test_what_is_not_a_pass_is_not_proven(answer: Answer) -> None:
    search = Search(100.0).told(Answer.PASS).told(answer)
    assert (search.proven_rps, search.failed_rps) == (100.0, 200.0)


def test_a_failed_confirmation_steps_down_and_the_third_is_the_last() -> None:
    search = ended(Search(100.0), 150.0)
    while_searching = [probe for probe in search.probes if not probe.confirms]
    again = Search(100.0, tuple(while_searching))
    rates = []
    while (following := again.next) is not None:
        rates.append(following[0])
        again = again.told(Answer.INCONCLUSIVE)
    assert len(rates) == CONFIRMATIONS
    assert rates[1:] == pytest.approx([rates[0] * (1 - WIDTH), rates[0] * (1 - WIDTH) ** 2])
    assert again.confirmed_rps is None


def test_in_a_queue_whose_capacity_is_known_it_is_never_overstated() -> None:
    """M/G/8 with log-normal service; the limit is its true p99 at 85% utilisation."""
    truth, objective_quantile = 0.85 * SERVERS, 0.99
    long = simulate(Service("queue", 0.85), 40, 20_000, 5_000, seed=1)
    limit_ms = float(np.quantile(long.latencies, objective_quantile)) * 1e3
    objective = quantile_objective("latency", objective_quantile, limit_ms)
    found = []
    for seed in range(10):
        search = Search(0.5 * SERVERS)
        while (following := search.next) is not None:
            rate, confirms = following
            number = 100 * seed + len(search.probes)
            if rate >= 0.99 * SERVERS:
                search = search.told(Answer.FAIL)
                continue
            traces = simulate(Service("queue", rate / SERVERS), 1, 15_000, 2_000, seed=number)
            run = run_of_seconds(traces.arrivals[0], traces.arrivals[0] + traces.latencies[0])
            alpha = 0.05 / CONFIRMATIONS if confirms else 0.05
            search = search.told(judge(measure(run, [objective]), [objective], alpha=alpha).answer)
        found.append(search.confirmed_rps)
    told = [rate for rate in found if rate is not None]
    assert len(told) >= 8
    assert max(told) <= truth
    assert np.median(told) > 0.7 * truth
