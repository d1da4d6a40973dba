import json

import pytest

from loadtest.bench.ratios import TARGETS, Part, Ratio, over_rounds
from loadtest.bench.results import (
    BEGIN,
    END,
    absolute_rows,
    all_targets,
    as_json,
    markdown,
    ratio_rows,
    significant,
)
from loadtest.bench.sections import with_section

MACHINE: dict[str, str | int] = {"cpu": "Some CPU", "cores": 2}
PART = Part(
    ratios={
        "miss_cpu_vs_hit": Ratio(2.0, 1.5, 2.6, 9),
        "hit_cpu_vs_empty_app": Ratio(2.3, 2.1, 2.5, 9),
        "requests_per_cpu_vs_nginx": Ratio(0.25, 0.2, 0.3, 5),
    },
    absolute={"hit_cpu_us": over_rounds([150.0, 161.0, 170.0])},
    skipped={"requests_per_cpu_vs_litellm": "litellm is not installed"},
    versions={"envoy": "1.40.0"},
)


def test_json_has_a_null_and_a_reason_for_what_was_not_measured() -> None:
    told = as_json(PART, MACHINE)
    assert told["ratios"]["requests_per_cpu_vs_litellm"] is None
    assert told["skipped"] == {"requests_per_cpu_vs_litellm": "litellm is not installed"}
    assert told["kept"]["requests_per_cpu_vs_litellm"] is None


def test_json_says_which_targets_are_kept() -> None:
    told = as_json(PART, MACHINE)
    assert told["kept"]["miss_cpu_vs_hit"] is True
    assert told["kept"]["hit_cpu_vs_empty_app"] is False
    assert told["targets"]["miss_cpu_vs_hit"] == {"at_most": 2.5}
    assert told["targets"]["requests_per_cpu_vs_litellm"] == {"at_least": 50}
    assert set(told["kept"]) == set(told["targets"]) == set(all_targets())


def test_json_is_json_and_gives_the_spread_of_everything() -> None:
    told = json.loads(json.dumps(as_json(PART, MACHINE)))
    assert told["spread"]["miss_cpu_vs_hit"] == [1.5, 2.6]
    assert told["spread"]["hit_cpu_us"] == [150.0, 170.0]
    assert told["absolute"] == {"hit_cpu_us": 161.0}
    assert told["machine"] == MACHINE


def test_a_row_tells_the_target_and_whether_it_is_kept() -> None:
    rows = {row[0]: row[1:] for row in ratio_rows(PART)}
    assert rows["miss_cpu_vs_hit"] == ("2", "1.5", "2.6", "9", "≤ 2.5", "yes")
    assert rows["hit_cpu_vs_empty_app"][-1] == "no"
    assert rows["requests_per_cpu_vs_nginx"][-2:] == ("", "")
    assert rows["requests_per_cpu_vs_litellm"] == ("not measured", "", "", "", "≥ 50", "")
    assert absolute_rows(PART) == [("hit_cpu_us", "161", "150", "170", "3")]


def test_the_section_has_tables_machine_versions_and_what_was_not_measured() -> None:
    section = markdown(PART, MACHINE)
    assert section.startswith(BEGIN)
    assert section.endswith(END)
    assert "| `miss_cpu_vs_hit` | 2 | 1.5 | 2.6 | 9 | ≤ 2.5 | yes |" in section
    assert "cpu Some CPU, cores 2" in section
    assert "envoy 1.40.0" in section
    assert "- `requests_per_cpu_vs_litellm`: litellm is not installed." in section
    columns = {line.count("|") for line in section.splitlines() if line.startswith("|")}
    assert columns == {8, 6}


def test_a_section_takes_the_place_of_the_old_one_and_of_nothing_else() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    # A backslash is not an escape here.
    new = f"{BEGIN}\nnew \\1\n{END}"
    once = with_section(page, new)
    assert once == f"before\n{new}\nafter\n"
    assert with_section(once, new) == once


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="put both back"):
        with_section("nothing here", "anything")


def test_every_target_is_of_a_ratio_that_a_benchmark_promises() -> None:
    from loadtest.bench.gateway import BENCHMARKS

    promised = {name for benchmark in BENCHMARKS for name in benchmark.ratios}
    assert set(TARGETS) <= promised


@pytest.mark.parametrize(("value", "told"), [(1.0449, 1.04), (0.00012345, 0.000123), (5, 5.0)])
def test_three_digits_are_told(value: float, told: float) -> None:
    assert significant(value) == told
