"""The autoscaler's formula, fleets through time, and the command."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from infra.cli import app
from serving.capacity.simulator.autoscaler import Autoscaler, Rules
from serving.capacity.simulator.fleet import Fleet, Histogram, simulate
from serving.capacity.simulator.load import Load, read_trace, shaped
from serving.errors import InputError

RULES = Rules(target=16, min_replicas=2, max_replicas=20)
FLEET = Fleet(per_replica=20, service_ms=50, cold_start_seconds=120, rules=RULES)


@pytest.mark.parametrize(
    ("metric", "replicas", "wanted"),
    [
        (45, 3, 5),
        # Within a tenth of the target: nothing.
        (33, 3, 3), (27, 3, 3), (33.1, 3, 4), (26.9, 3, 3),
        (0, 3, 0),
        (float("nan"), 3, 3), (float("inf"), 3, 3), (float("-inf"), 3, 3), (-3, 3, 3),
        (5, 0, 1),
    ],
)  # fmt: skip
def test_replicas_are_metric_over_target_and_the_unknown_changes_nothing(
    metric: float, replicas: int, wanted: int
) -> None:
    assert Autoscaler(Rules(10, 1, 20)).recommend(metric, replicas) == wanted


def test_going_down_waits_for_the_whole_window() -> None:
    scaler = Autoscaler(Rules(10, 1, 20, scale_down_window_seconds=300))
    assert scaler.decide(0, 100, 10) == 10
    assert [scaler.decide(now, 10, 10) for now in (15, 150, 285)] == [10, 10, 10]
    assert scaler.decide(300, 10, 10) == 1


def test_going_up_at_most_doubles_or_adds_four() -> None:
    scaler = Autoscaler(Rules(10, 1, 100))
    assert scaler.decide(0, 1000, 1) == 5
    assert scaler.decide(15, 1000, 10) == 20


def test_limits_hold_whatever_the_metric_says() -> None:
    scaler = Autoscaler(Rules(10, 2, 6))
    assert scaler.decide(0, 1000, 4) == 6
    assert Autoscaler(Rules(10, 2, 6)).decide(0, 0, 2) == 2


def test_a_steady_load_is_borne_by_as_many_replicas_as_the_plan_says() -> None:
    outcome = simulate(shaped("constant", 2000, 1), FLEET, 50, seed=1)
    # One more at times, since in-flight is counted at a moment and not on average.
    assert 7 <= outcome.most_replicas <= 9
    assert outcome.replica_hours == pytest.approx(7.5, abs=0.5)
    assert outcome.bad_ratio < 0.001
    assert outcome.p99_ms == pytest.approx(50, rel=0.002)
    # Little's law, at every sync.
    mean = np.mean([moment.in_flight for moment in outcome.moments])
    assert mean == pytest.approx(100, rel=0.02)


def test_a_step_is_late_for_about_a_cold_start() -> None:
    outcome = simulate(shaped("step", 2000, 1), FLEET, 75, seed=1)
    assert outcome.longest_queue > 0
    late = [moment for moment in outcome.moments if moment.in_flight > 20 * moment.ready]
    assert 120 <= 15 * len(late) <= 600
    assert outcome.moments[-1].ready >= 5


def test_looking_only_at_who_waits_is_later_dearer_and_less_steady() -> None:
    waiting = replace(FLEET, signal="waiting", rules=replace(RULES, target=5))
    day = shaped("day", 2000, 24)
    good, poor = (simulate(day, fleet, 75, seed=1) for fleet in (FLEET, waiting))
    assert good.bad_ratio == 0
    assert poor.bad_ratio > 0.05
    assert poor.turns > 3 * good.turns
    assert poor.replica_hours > good.replica_hours


def test_the_same_seed_gives_the_same_day() -> None:
    day = shaped("day", 200, 2)
    assert simulate(day, FLEET, 75, seed=5) == simulate(day, FLEET, 75, seed=5)
    assert simulate(day, FLEET, 75, seed=5) != simulate(day, FLEET, 75, seed=6)


def test_a_day_of_two_thousand_a_second_is_counted_whole() -> None:
    outcome = simulate(shaped("constant", 2000, 24), FLEET, 75, seed=1)
    assert outcome.requests == pytest.approx(24 * 3600 * 2000, rel=0.001)


def test_requests_that_are_never_answered_are_bad() -> None:
    stuck = replace(FLEET, rules=replace(RULES, max_replicas=2))
    outcome = simulate(shaped("constant", 2000, 0.2), stuck, 75, seed=1)
    assert outcome.bad_ratio > 0.9


def test_a_histogram_is_within_a_five_hundredth() -> None:
    random = np.random.default_rng(1)
    times = random.lognormal(3, 1, 200_000)
    histogram = Histogram()
    for part in np.split(times, 10):
        histogram.add(part)
    for share in (0.01, 0.5, 0.99, 0.999):
        assert histogram.quantile(share) == pytest.approx(np.quantile(times, share), rel=0.002)
    assert Histogram().quantile(0.5) == 0


# Traces


def test_a_trace_is_read_and_starts_at_its_first_moment(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("seconds,rps\n100,10\n160,20\n\n")
    assert read_trace(path) == Load((0, 60), (10, 20))
    assert read_trace(path).rate(30) == 15


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "has fewer than two moments"),
        ("0,1\n", "has fewer than two moments"),
        ("0,1\nx,2\n", "line 2 is not seconds,rps"),
        ("0,1\n0,2\n", "line 2 does not go on in time"),
        ("0,1\n1,-2\n", "line 2 does not go on in time"),
        ("0,1\n1,nan\n", "line 2 does not go on in time"),
        ("0,1\ninf,1\n", "line 2 does not go on in time"),
        ("\x00\xff", "has fewer than two moments"),
    ],
)
def test_a_broken_trace_is_refused(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=expected):
        read_trace(path)


# The command


def ran(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["simulate", *arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


def test_the_ranker_keeps_its_promise_through_a_day_and_not_through_a_step() -> None:
    assert "the p99 of 50 ms holds" in ran("ranker")
    assert "DOES NOT HOLD" in ran("ranker", "--shape", "step", "--hours", "1", code=1)


def test_json_has_the_outcome_and_the_money(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("0,400\n3600,400\n")
    found = json.loads(ran("ranker", "--trace", str(trace), "--json"))
    assert found["outcome"]["requests"] == pytest.approx(400 * 3600, rel=0.01)
    assert found["usd"] == pytest.approx(found["outcome"]["replica_hours"] * 0.8048)


@pytest.mark.parametrize(
    "arguments", [("ranker", "--shape", "wave"), ("ranker", "--signal", "cpu"), ("nobody",)]
)
def test_what_cannot_be_used_is_told(arguments: tuple[str, ...]) -> None:
    with pytest.raises(InputError):
        ran(*arguments)
