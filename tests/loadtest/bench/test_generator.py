"""The bench of the generator says what was measured, and of what was not that it was not."""

import numpy as np
import pytest

from loadtest.bench.generator import BEGIN, END, Found, _quantiles, markdown
from loadtest.bench.sections import RESULTS, with_section

FOUND = Found(
    throughput_rps={"ours": [8000.0, 9000.0], "FastHttpUser": [4000.0, 4500.0]},
    calibrated_rps=2800.0,
    accuracy_rps=1408.0,
    ours_ms=[{"p50": 20.0, "p99": 50.0, "p99.9": 70.0}],
    second_ms=[{"p50": 20.0, "p99": 40.0, "p99.9": 70.0}],
    stall_p99_ms={"ours": 1900.0, "FastHttpUser": 12.0},
)


def test_ratios_are_of_the_same_round() -> None:
    assert FOUND.ratio("ours", "FastHttpUser") == 2.0
    assert FOUND.ratio("ours", "wrk") is None


def test_what_is_not_installed_is_told_as_not_measured() -> None:
    text = markdown(FOUND)
    assert "not measured" in text
    assert FOUND.apart("p99") == 0.25
    assert Found().apart("p99") is None
    assert "| FastHttpUser | 4,250 | 2.00 (target: 0.8) |" in text


def test_the_section_is_one_that_the_page_has() -> None:
    text = with_section(RESULTS.read_text(), markdown(FOUND))
    assert text.count(BEGIN) == text.count(END) == 1


def test_quantiles_are_of_the_sample() -> None:
    found = _quantiles(np.arange(1001.0))
    assert found == {"p50": 500.0, "p99": 990.0, "p99.9": pytest.approx(999.0)}
