"""What the command promises to print, on a run of everything."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.bench.gateway import BENCHMARKS, Benchmark, measure_all
from loadtest.bench.ratios import Measure, Part, Tell, over_rounds
from loadtest.bench.results import BEGIN, END
from loadtest.bench.sections import RESULTS
from loadtest.bench.sizes import FULL, QUICK, Sizes
from serving.errors import InfrastructureError

ROOT = Path(__file__).parents[3]


@contextmanager
def fine(folder: Path, sizes: Sizes, tell: Tell) -> Iterator[Measure]:
    tell("fine")
    yield lambda: Part(ratios={"a": over_rounds([1.0])})
    (folder / "stopped").touch()


@contextmanager
def absent(folder: Path, sizes: Sizes, tell: Tell) -> Iterator[Measure]:
    if folder.exists():
        raise InfrastructureError("no such server\nmore than anybody wants to read")
    yield Part


@contextmanager
def broken(folder: Path, sizes: Sizes, tell: Tell) -> Iterator[Measure]:
    def measure() -> Part:
        raise InfrastructureError("3 requests failed")

    yield measure
    (folder / "stopped").touch()


@pytest.mark.parametrize("together", [False, True])
def test_a_benchmark_that_cannot_run_says_why_and_stops_no_other(
    tmp_path: Path, together: bool
) -> None:
    benchmarks = (
        Benchmark("absent", absent, ("b", "c")),
        Benchmark("broken", broken, ("d",)),
        Benchmark("fine", fine, ("a",)),
    )
    said: list[str] = []
    sizes = replace(QUICK, starts_together=together)
    part = measure_all(benchmarks, sizes, tmp_path, said.append)
    assert part.ratios == {"a": over_rounds([1.0])}
    assert part.skipped == {"b": "no such server", "c": "no such server", "d": "3 requests failed"}
    assert said == ["fine"]
    # Whatever happened, all that was started is stopped.
    assert (tmp_path / "fine" / "stopped").exists()


def test_an_unknown_benchmark_is_refused_in_one_line() -> None:
    done = bench("--only", "speed", seconds=60)
    assert done.returncode == 2
    assert done.stderr == (
        "bench: only=speed is no benchmark; there are hop, end-to-end, stream, proxies\n"
    )


def test_a_quick_run_installs_nothing_and_a_full_one_measures_more() -> None:
    assert not QUICK.installs
    assert FULL.rounds > QUICK.rounds
    assert FULL.hop_requests > QUICK.hop_requests


def test_the_page_of_results_has_a_place_for_the_next_run() -> None:
    page = RESULTS.read_text()
    assert page.count(BEGIN) == page.count(END) == 1
    assert page.index(BEGIN) < page.index(END)


@pytest.mark.live
def test_a_quick_run_prints_every_ratio_that_is_promised_or_why_it_is_not_there() -> None:
    page = RESULTS.read_bytes()
    done = bench("--quick", "--json", seconds=280)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    promised = {name for benchmark in BENCHMARKS for name in benchmark.ratios}
    assert promised <= set(told["ratios"])
    assert {"ratios", "absolute", "machine", "targets", "skipped"} <= set(told)
    missing = {name for name, value in told["ratios"].items() if value is None}
    assert missing == set(told["skipped"])
    # Other programs may not be installed; what is ours is always measured.
    assert missing <= {"requests_per_cpu_vs_litellm", "requests_per_cpu_vs_nginx"}
    assert all(value > 0 for value in told["ratios"].values() if value is not None)
    # A look is not for the record.
    assert RESULTS.read_bytes() == page


def bench(*arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """The command as a user runs it."""
    return subprocess.run(
        [sys.executable, "-m", "loadtest.bench.gateway", *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        cwd=ROOT,
        env=dict(os.environ),
    )
