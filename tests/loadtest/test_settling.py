"""What a person asks for becomes a job, or one line that says what to ask for instead."""

from pathlib import Path

import pytest

from loadtest.settling import settle
from loadtest.workload import workload_of
from serving.errors import InputError, StackError

URL = "https://gateway.example:8443/"


def test_elsewhere_nothing_is_assumed_but_the_address(tmp_path: Path) -> None:
    job = settle("ranker", "steady", url=URL, ca=tmp_path / "ca.pem", rate_rps=50.0, seed=4)
    assert (job.url, job.environment) == (URL.rstrip("/"), "other")
    assert (job.version, job.digest, job.home) == (None, None, None)
    assert (job.peak_rps, job.seed) == (50.0, 4)
    assert job.ca == str(tmp_path / "ca.pem")


def test_rate_and_seed_are_the_specs_and_the_workloads_unless_stated() -> None:
    job = settle("ranker", "steady", url=URL)
    assert (job.peak_rps, job.seed) == (2000.0, workload_of("steady").seed)


def test_inputs_are_new_each_time_unless_a_salt_is_given() -> None:
    first, second = (settle("ranker", "steady", url=URL) for _ in range(2))
    assert first.salt != second.salt
    assert settle("ranker", "steady", url=URL, salt=5).salt == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ranked", "steady"), "ranked"),
        (("ranker", "stead"), "is not known"),
        (("ranker", "chat"), "does not answer; use a workload whose request is triton_http or"),
    ],
)
def test_what_cannot_be_tested_is_told(arguments: tuple[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        settle(*arguments, url=URL)


@pytest.mark.parametrize(
    ("option", "value"),
    [("rate_rps", -1.0), ("seconds", 0.0), ("seed", -3), ("error_ratio", 2.0), ("alpha", 1.5)],
)
def test_a_number_that_is_none_is_told_with_its_name(option: str, value: float) -> None:
    named = "peak_rps" if option == "rate_rps" else option
    with pytest.raises(InputError, match=named):
        settle("ranker", "steady", url=URL, **{option: value})  # type: ignore[arg-type]


def test_another_kind_of_address_is_refused() -> None:
    with pytest.raises(InputError, match="no http or https"):
        settle("ranker", "steady", url="ranker.example")


def test_a_batch_larger_than_the_model_takes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text(
        "name: large\nbecause: it shows something\narrivals: {kind: poisson}\n"
        "request: {kind: triton_http, framing: binary, batch_size: 65}\n"
    )
    with pytest.raises(InputError, match="batch_size=65 is more than max_batch_size=64"):
        settle("ranker", str(path), url=URL)


def test_without_a_stack_and_an_address_there_is_nothing_to_test(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="galley up"):
        settle("ranker", "steady", home=tmp_path / "none")
