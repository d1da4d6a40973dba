"""The table of the judge: what it holds, and that it leaves the rest of the page alone."""

import json
from collections import Counter

from loadtest.bench.judge import BEGIN, END, Plan, as_json, markdown, too_often, trials_of
from loadtest.bench.sections import with_section
from loadtest.simulation.queues import Service
from loadtest.simulation.trials import ALLOWED, GALLEY, Outcome, Trial, run_trial
from serving.judge.verdict import Answer

PLAN = Plan((Service("iid"), Service("failing spells")), (400,), boundary_runs=5, power_runs=5)


def test_the_section_has_a_row_for_each_service_and_size() -> None:
    outcomes = [run_trial(trial) for trial in trials_of(PLAN)]
    text = markdown(outcomes, PLAN)
    assert text.startswith(BEGIN)
    assert text.endswith(END)
    assert text.count("| iid | 400 |") == 3
    assert text.count("| failing spells | 400 |") == 1
    found = json.loads(json.dumps(as_json(outcomes)))
    assert {row["judge"] for row in found} > {GALLEY, "sample p99"}
    assert all(abs(sum(row[answer.value] for answer in Answer) - 1) < 1e-9 for row in found)


def test_other_sections_stay_and_a_second_run_replaces_the_first() -> None:
    others = "# Results\n\n<!-- begin: other -->\nkept\n<!-- end: other -->\n"
    page = f"{others}\n{BEGIN}\n{END}\n"
    once = with_section(page, f"{BEGIN}\nfirst \\1\n{END}")
    twice = with_section(once, f"{BEGIN}\nsecond\n{END}")
    assert once.startswith(others)
    assert twice == once.replace("first \\1", "second")


def test_a_judge_that_passes_too_often_is_told() -> None:
    trial = Trial(Service("iid"), 5_000, 400)
    for passed, expected in ((20, False), (36, True)):
        tallies = {(GALLEY, ALLOWED): Counter({Answer.PASS: passed})}
        assert too_often(Outcome(trial, tallies, 1.0)) is expected
