"""Several runs, judged as one."""

from dataclasses import replace

import numpy as np
import pytest

from serving.errors import InputError
from serving.judge.counts import Counts
from serving.judge.evidence import Evidence, Generator
from serving.judge.judging import judge
from serving.judge.measuring import measure
from serving.judge.objectives import Objective, quantile_objective
from serving.judge.repetitions import pooled
from serving.judge.run import run_of_seconds
from serving.judge.verdict import Answer

P99 = quantile_objective("latency", 0.99, 50)
ERRORS = Objective("errors", 0.01)


def evidence(count: int, slow: int = 0, seed: int = 1) -> Evidence:
    took = np.random.default_rng(seed).uniform(0.015, 0.025, count)
    took[np.linspace(5, count - 5, slow).astype(int)] = 0.080
    due = np.arange(count) / 10
    return measure(run_of_seconds(due, due + took), (P99, ERRORS))


def test_two_short_runs_pass_together_where_neither_does_alone() -> None:
    one, other = evidence(200), evidence(200, seed=2)
    assert judge(one, [P99]).answer is Answer.INCONCLUSIVE
    both = pooled([one, other])
    assert judge(both, [P99]).answer is Answer.PASS
    assert both.counted[0].counts == Counts(400, 0)


def test_a_good_run_does_not_outweigh_a_bad_one_by_its_percentile() -> None:
    bad = pooled([evidence(1000, slow=60), evidence(1000)])
    found = judge(bad, [P99])
    assert found.answer is Answer.FAIL
    assert found.gates[0].observed_ms is None


def test_effective_sizes_add_up() -> None:
    one, other = evidence(1000), evidence(1000)
    slow = replace(other, tau=10.0, counted=tuple(replace(c, tau=10.0) for c in other.counted))
    both = pooled([one, slow])
    assert both.attempted / both.tau == pytest.approx(1000 + 100)
    assert judge(both, [P99]).gates[0].n_eff == pytest.approx(1100)


@pytest.mark.parametrize(
    "wrong",
    [
        {"early": 3},
        {"lag_p99_ms": 9.0},
        {"dropped": 500},
        {"generator": Generator(workers_lost=1)},
        {"generator": Generator(cpu_ratio=0.99)},
    ],
)
def test_one_run_that_cannot_be_trusted_spoils_the_whole(wrong: dict[str, int]) -> None:
    spoilt = replace(evidence(1000), **wrong)  # type: ignore[arg-type]
    assert judge(pooled([evidence(1000), spoilt]), [P99]).answer is Answer.INVALID


def test_a_metric_that_one_run_lacks_is_missing() -> None:
    without = replace(evidence(1000), counted=evidence(1000).counted[:1])
    assert judge(pooled([evidence(1000), without]), [P99, ERRORS]).answer is Answer.INVALID
    with pytest.raises(InputError, match="no run"):
        pooled([])
