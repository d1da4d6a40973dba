"""galley judge, as people and CI servers use it."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from infra.cli import app
from serving.errors import GalleyError, InputError, SpecError
from serving.judge.verdict import Answer

HEADER = "intended_start_ms,start_ms,end_ms,status"
LIMITS = ("--p99-ms", "50", "--error-ratio", "0.01")


def judge(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["judge", *map(str, arguments)])


def log(folder: Path, took_ms: Sequence[float], name: str = "run.csv", status: str = "200") -> Path:
    path = folder / name
    rows = (f"{n * 100},{n * 100},{n * 100 + took:.6f},{status}" for n, took in enumerate(took_ms))
    path.write_text("\n".join([HEADER, *rows, ""]))
    return path


def quick(count: int) -> Sequence[float]:
    return list(np.random.default_rng(1).uniform(15, 25, count))


CASES = [
    (quick(2000), Answer.PASS),
    ([*quick(1900), *[80.0] * 100], Answer.FAIL),
    (quick(50), Answer.INCONCLUSIVE),
    ([], Answer.INVALID),
]


@pytest.mark.parametrize(("took", "answer"), CASES, ids=[case[1].value for case in CASES])
def test_the_exit_code_the_json_and_the_last_line_say_the_same(
    tmp_path: Path, took: Sequence[float], answer: Answer
) -> None:
    path = log(tmp_path, took)
    told, machine = judge(path, *LIMITS), judge(path, *LIMITS, "--json")
    assert told.exit_code == machine.exit_code == answer.exit_code
    assert told.stdout.splitlines()[-1].startswith(f"{answer.value}  ")
    found = json.loads(machine.stdout)
    assert (found["verdict"], found["exit_code"]) == (answer.value, answer.exit_code)
    assert [gate["gate"] for gate in found["gates"]] == ["latency_p99_ms", "error_ratio"]
    assert found["evidence"]["attempted"] == len(took)


@pytest.mark.parametrize(("took", "answer"), CASES, ids=[case[1].value for case in CASES])
def test_junit_has_a_failure_or_an_error_exactly_where_it_is_no_pass(
    tmp_path: Path, took: Sequence[float], answer: Answer
) -> None:
    path, report = log(tmp_path, took), tmp_path / "junit.xml"
    assert judge(path, *LIMITS, "--junit", report).exit_code == answer.exit_code
    root = ET.parse(report).getroot()  # noqa: S314  (written here)
    kinds = {child.tag for case in root.iter("testcase") for child in case}
    expected = {
        Answer.PASS: set(),
        Answer.FAIL: {"failure"},
        Answer.INCONCLUSIVE: {"error"},
        Answer.INVALID: {"error"},
    }
    assert kinds == expected[answer]
    names = [case.get("name") for case in root.iter("testcase")]
    assert {"measurement", "latency_p99_ms", "error_ratio"} <= set(names)


def test_the_smallest_sample_is_told_before_the_verdict(tmp_path: Path) -> None:
    result = judge(log(tmp_path, quick(50)), *LIMITS)
    assert "299 independent requests" in result.stderr
    assert "at least 249 more requests" in result.stdout
    strict = judge(
        log(tmp_path, quick(50)), "--p99-ms", 50, "--error-ratio", 0.001, "--alpha", 0.01
    )
    assert "4,603 independent requests" in strict.stderr


def test_a_model_is_judged_by_the_slo_of_its_spec(tmp_path: Path) -> None:
    found = json.loads(judge(log(tmp_path, quick(500)), "--slo", "ranker", "--json").stdout)
    assert [gate["gate"] for gate in found["gates"]] == ["latency_p99_ms", "error_ratio"]
    assert found["gates"][0]["limit_ms"] > 0


def test_the_parts_of_a_run_are_judged_as_one(tmp_path: Path) -> None:
    took = quick(400)
    whole = log(tmp_path, took)
    lines = whole.read_text().splitlines()
    parts = []
    for worker in (0, 1):
        part = tmp_path / f"worker-{worker}.csv"
        part.write_text("\n".join([HEADER, *lines[1 + worker :: 2], ""]))
        parts.append(part)
    assert judge(parts[0], *LIMITS).exit_code == Answer.INCONCLUSIVE.exit_code
    one, both = (json.loads(judge(*each, *LIMITS, "--json").stdout) for each in ([whole], parts))
    assert one["verdict"] == both["verdict"] == "PASS"
    assert one["evidence"] == both["evidence"]


def test_a_sample_that_is_missing_makes_it_invalid(tmp_path: Path) -> None:
    path = log(tmp_path, quick(2000))
    assert judge(path, *LIMITS, "--expected-requests", 2000).exit_code == 0
    assert judge(path, *LIMITS, "--expected-requests", 2001).exit_code == Answer.INVALID.exit_code


def test_other_quantiles_and_a_rate_are_judged_where_they_are_asked_for(tmp_path: Path) -> None:
    result = judge(
        log(tmp_path, quick(4000)),
        *("--quantile-ms", "0.999=80", "--quantile-ms", "0.5=22", "--min-rps", "10", "--json"),
    )
    gates = {gate["gate"]: gate["verdict"] for gate in json.loads(result.stdout)["gates"]}
    assert gates == {"latency_p99.9_ms": "PASS", "latency_p50_ms": "PASS", "rate_rps": "PASS"}


def test_a_log_without_a_schedule_never_passes_unless_that_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "closed.csv"
    rows = (f"{n * 100},{n * 100 + 20},200" for n in range(2000))
    path.write_text("\n".join(["start_ms,end_ms,status", *rows, ""]))
    result = judge(path, *LIMITS)
    assert result.exit_code == Answer.INCONCLUSIVE.exit_code
    assert "coordinated omission" in result.stdout
    assert judge(path, *LIMITS, "--accept-closed-loop").exit_code == 0
    assert judge(path, *LIMITS, "--scheduled-rps", 10).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "nothing is promised"),
        (("--p99-ms", "0"), "limit=0"),
        (("--p99-ms", "nan"), "limit=nan"),
        (("--error-ratio", "0"), "can be judged by no number of requests"),
        (("--error-ratio", "5"), "can be judged by no number of requests"),
        (("--quantile-ms", "99"), "write 0.999=80"),
        (("--quantile-ms", "99=80"), "latency"),
        (("--p99-ms", "50", "--quantile-ms", "0.99=60"), "given twice"),
        (("--p99-ms", "50", "--alpha", "0.7"), "alpha=0.7"),
        (("--p99-ms", "50", "--format", "excel"), "--format excel is not known"),
        (("--p99-ms", "50", "--benchmark", "2"), "--benchmark is for GuideLLM"),
        (("--p99-ms", "50", "--scheduled-rps", "10"), "would replace the schedule"),
        (("--slo", "nothing"), "has no spec"),
    ],
)
def test_what_cannot_be_judged_is_bad_input_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    result = judge(log(tmp_path, quick(10)), *arguments)
    assert isinstance(result.exception, InputError)
    assert told in str(result.exception)
    assert "\n" not in str(result.exception)
    assert issubclass(SpecError, GalleyError)


def test_the_command_ends_with_the_verdicts_exit_code_and_help_needs_no_numbers(
    tmp_path: Path,
) -> None:
    def galley(*arguments: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-W", "error", "-m", "infra.cli", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=Path(__file__).parents[2],
        )

    path = log(tmp_path, quick(50))
    assert galley("judge", path, *LIMITS).returncode == 3
    assert galley("judge", tmp_path / "none.csv", *LIMITS).returncode == 2
    imported = galley("judge", "--help")
    assert imported.returncode == 0
    assert "intended_start_ms" in imported.stdout
    modules = subprocess.run(
        [sys.executable, "-c", "import sys, loadtest.commands; print(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=Path(__file__).parents[2],
    ).stdout.split()
    assert not {"numpy", "scipy", "pydantic", "orjson", "junitparser"} & set(modules)
