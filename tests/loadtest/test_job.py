"""A job settles everything before a run starts, and its text gives it back."""

import pytest

from loadtest.job import MOST, job_from
from loadtest.workload import workload_of
from serving.errors import InputError
from serving.judge.objectives import smallest_run
from tests.loadtest.runs import job_of


@pytest.mark.parametrize("workload", ["steady", "burst", "ramp", "surge", "replay", "chat", "grpc"])
@pytest.mark.parametrize("model", ["filetype", "ranker"])
def test_a_job_is_read_back_equal_and_with_the_same_schedule(model: str, workload: str) -> None:
    job = job_of(model, workload, seconds=10)
    again = job_from(job.as_text())
    assert again == job
    assert again.schedule.digest == job.schedule.digest
    assert again.objectives == job.objectives


def test_limits_may_be_stated_instead_of_the_specs() -> None:
    job = job_of(latency_p99_ms=10, error_ratio=0.5)
    assert [(one.name, one.limit_ms, one.allowed_ratio) for one in job.objectives] == [
        ("latency_p99_ms", 10, 0.01),
        ("error_ratio", None, 0.5),
    ]


def test_an_open_run_is_planned_for_as_long_as_a_pass_may_take() -> None:
    job = job_of(exact=False, seconds=None)
    least = smallest_run(job.objectives, job.alpha)
    assert job.schedule.measured.sum() == pytest.approx(MOST * least, rel=0.05)


def test_a_changed_job_has_a_schedule_of_its_own() -> None:
    job = job_of(seconds=10)
    other = job.changed(peak_rps=80.0)
    assert len(other.schedule) > 1.5 * len(job.schedule)
    assert (other.seed, other.seconds) == (job.seed, job.seconds)


def test_there_are_hands_enough_for_a_service_that_is_four_times_too_slow() -> None:
    assert job_of("ranker", peak_rps=2000.0).users == 400
    assert job_of(peak_rps=1.0).users == 16
    assert job_of(peak_rps=1.0, max_in_flight=3).users == 3


def test_a_request_is_given_up_long_after_its_limit() -> None:
    assert job_of().timeout_seconds == 5.0
    assert job_of(latency_p99_ms=2000.0).timeout_seconds == 20.0
    assert job_of(workload=workload_of("chat")).timeout_seconds == 120.0


def test_a_key_comes_from_the_environment_and_is_in_no_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GALLEY_KEY", "galley-secret")
    job = job_of()
    assert job.key() == "galley-secret"
    assert "galley-secret" not in job.as_text()
    monkeypatch.delenv("GALLEY_KEY")
    assert job.key() is None


@pytest.mark.parametrize("field", ["error_ratio", "peak_rps", "seed", "url"])
def test_what_is_wrong_in_a_job_is_told(field: str) -> None:
    text = job_of(error_ratio=0.5).as_text().replace(f'"{field}":', f'"{field}x":')
    with pytest.raises(InputError, match=field):
        job_from(text)
