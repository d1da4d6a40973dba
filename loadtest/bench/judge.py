"""The judge against simulated truth, beside what other tools' rules say of the same traces.

    python -m loadtest.bench.judge [--quick] [--json]

Writes its section of RESULTS.md. The whole takes about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, Final

from loadtest.bench.machine import machine
from loadtest.bench.sections import RESULTS, markdown_table, with_section
from loadtest.simulation.others import RULES
from loadtest.simulation.queues import Service
from loadtest.simulation.trials import ALLOWED, GALLEY, Outcome, Trial, run_trial
from serving.judge.bounds import lower_bound, upper_bound
from serving.judge.verdict import Answer

BEGIN: Final = "<!-- judge:begin -->"
END: Final = "<!-- judge:end -->"

SERVICES: Final = (
    Service("iid"),
    Service("queue", 0.5),
    Service("queue", 0.7),
    Service("queue", 0.85),
    Service("queue", 0.92),
    Service("bursts", 0.7),
    Service("slow spells", 0.7),
    Service("drift", 0.85),
    Service("failing spells"),
)
MULTIPLES: Final = (0.1, 0.2, 0.5, 1.5, 2.0, 5.0)
"""True shares of bad requests, in multiples of what is allowed."""
POWER: Final = 0.8
TRUTH: Final = 160
"""Requests that a limit is found from, for each request of a run that is judged by it."""


@dataclass(frozen=True)
class Plan:
    """How much is simulated."""

    services: tuple[Service, ...]
    sizes: tuple[int, ...]
    boundary_runs: int
    power_runs: int


QUICK: Final = Plan((SERVICES[0], SERVICES[2], SERVICES[4]), (5_000, 20_000), 100, 40)
WHOLE: Final = Plan(SERVICES, (1_000, 5_000, 20_000, 100_000), 400, 100)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials and tell what came out; 1 if a service at its limit passed too often."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer services and runs; not written")
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    chosen = parser.parse_args(arguments)
    plan = QUICK if chosen.quick else WHOLE
    outcomes = list(_run(plan))
    section = markdown(outcomes, plan)
    if chosen.json:
        sys.stdout.write(json.dumps(as_json(outcomes), indent=2) + "\n")
    else:
        sys.stdout.write(section + "\n")
    if not chosen.quick:
        RESULTS.write_text(with_section(RESULTS.read_text(), section))
    return int(any(too_often(one) for one in outcomes if _is_long(one.trial)))


def _run(plan: Plan) -> Iterator[Outcome]:
    trials = list(trials_of(plan))
    # The longest first, so that no core waits for the last one.
    trials.sort(key=lambda trial: -trial.size * trial.runs * len(trial.bad_ratios))
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for done, outcome in enumerate(pool.map(run_trial, trials), start=1):
            trial = outcome.trial
            sys.stderr.write(f"{done}/{len(trials)}  {trial.service.name}, {trial.size:,}\n")
            yield outcome


def trials_of(plan: Plan) -> Iterator[Trial]:
    """At the boundary for each service and size, and around it where there is a limit to move."""
    for service in plan.services:
        for size in plan.sizes:
            runs = plan.boundary_runs if size < 100_000 else plan.power_runs
            # The limit must be known much better than a run can measure it.
            truth = max(2_000_000, TRUTH * size)
            # Each service has chances of its own, or luck would be the same in many rows.
            seed = zlib.crc32(f"{service.name} {size}".encode())
            yield Trial(service, size, runs, (ALLOWED,), seed, truth)
            if service.kind != "failing spells":
                around = tuple(ALLOWED * multiple for multiple in MULTIPLES)
                yield Trial(service, size, plan.power_runs, around, seed + 1, truth)


def _is_long(trial: Trial) -> bool:
    """Whether a run holds what it is to show: ten spells at least, where there are spells."""
    return "spells" not in trial.service.kind or trial.size >= 20_000


def too_often(outcome: Outcome) -> bool:
    """Whether PASS at the boundary came more often than 5% can explain (once in a thousand)."""
    if outcome.trial.bad_ratios != (ALLOWED,):
        return False
    passed = outcome.tallies[GALLEY, ALLOWED][Answer.PASS]
    return lower_bound(passed, outcome.trial.runs, 0.001) > 0.05


def as_json(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """One object for each service, size, judge and true share."""
    return [
        {
            "service": outcome.trial.service.name,
            "requests": outcome.trial.size,
            "runs": outcome.trial.runs,
            "judge": name,
            "true_over_allowed": round(ratio / ALLOWED, 3),
            "median_tau": round(outcome.median_tau, 2),
            **{answer.value: tally[answer] / outcome.trial.runs for answer in Answer},
        }
        for outcome in _ordered(outcomes)
        for (name, ratio), tally in outcome.tallies.items()
    ]


def _ordered(outcomes: Iterable[Outcome]) -> list[Outcome]:
    names = [service.name for service in SERVICES]
    return sorted(outcomes, key=lambda one: (names.index(one.trial.service.name), one.trial.size))


def markdown(outcomes: Iterable[Outcome], plan: Plan) -> str:
    """The section of RESULTS.md."""
    ordered = _ordered(outcomes)
    facts = ", ".join(f"{name} {value}" for name, value in machine().items())
    return "\n".join(
        [
            BEGIN,
            "## The judge",
            "",
            "`python -m loadtest.bench.judge` rewrites this section. Simulated services whose",
            "truth is known: M/G/8 queues at the named utilisation, with bursts of arrivals,",
            "spells of slow service, or drift; independent times; and errors in spells of 20.",
            "p99 SLO, alpha 5%.",
            f"Machine: {facts}.",
            "",
            "**At the limit**, where exactly 1% is bad, every PASS is a wrong one. Shares of runs:",
            "",
            *markdown_table(
                ("service", "requests", "runs", "tau", "galley", "at most", *RULES, "galley FAILs"),
                list(_boundary_rows(ordered)),
            ),
            "",
            "A run must be long against what it is to show: with 5,000 requests there are 2.5",
            "spells, and one run in twelve holds none, which no judge can know. A burst of",
            "failures that leaves the queue alone counts in full towards FAIL: that run broke its",
            "promise.",
            "",
            "**Beside the limit**: share of runs that galley FAILs where 1.5, 2 and 5 times the",
            "allowed share is bad, and PASSes where a half, a fifth and a tenth of it is.",
            "",
            *markdown_table(
                ("service", "requests", "FAIL 1.5x", "2x", "5x", "PASS 0.5x", "0.2x", "0.1x"),
                list(_power_rows(ordered)),
            ),
            "",
            f"**Requests needed** for the right verdict in {POWER:.0%} of runs (of these sizes):",
            "",
            *markdown_table(
                ("service", "FAIL 1.5x", "2x", "5x", "PASS 0.5x", "0.2x", "0.1x"),
                list(_needed_rows(ordered, plan)),
            ),
            "",
            "**Wrongly passed by others**: where 1.5 times the allowed share is bad, share of runs",
            "that each rule passes.",
            "",
            *markdown_table(("service", "requests", GALLEY, *RULES), list(_wrong_rows(ordered))),
            "",
            "Rules of other tools are written from their source and not run; GuideLLM prints its",
            "interval and decides nothing.",
            END,
        ]
    )


def _boundary_rows(outcomes: Iterable[Outcome]) -> Iterator[list[str]]:
    for one in outcomes:
        if one.trial.bad_ratios != (ALLOWED,):
            continue
        trial, passed = one.trial, one.tallies[GALLEY, ALLOWED][Answer.PASS]
        yield [
            trial.service.name,
            f"{trial.size:,}",
            str(trial.runs),
            f"{one.median_tau:.1f}",
            f"**{passed / trial.runs:.1%}**",
            f"{upper_bound(passed, trial.runs, 0.05):.1%}",
            *(f"{one.share(name, ALLOWED, Answer.PASS):.0%}" for name in RULES),
            f"{one.share(GALLEY, ALLOWED, Answer.FAIL):.1%}",
        ]


_SIDES: Final = (
    (1.5, Answer.FAIL),
    (2.0, Answer.FAIL),
    (5.0, Answer.FAIL),
    (0.5, Answer.PASS),
    (0.2, Answer.PASS),
    (0.1, Answer.PASS),
)


def _around(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return [one for one in outcomes if len(one.trial.bad_ratios) > 1]


def _power_rows(outcomes: Iterable[Outcome]) -> Iterator[list[str]]:
    for one in _around(outcomes):
        shares = [one.share(GALLEY, ALLOWED * multiple, right) for multiple, right in _SIDES]
        yield [
            one.trial.service.name,
            f"{one.trial.size:,}",
            *(f"{share:.0%}" for share in shares),
        ]


def _needed_rows(outcomes: Iterable[Outcome], plan: Plan) -> Iterator[list[str]]:
    around = _around(outcomes)
    for service in plan.services:
        of_it = [one for one in around if one.trial.service == service]
        if of_it:
            yield [service.name, *(_needed(of_it, *side) for side in _SIDES)]


def _needed(outcomes: Sequence[Outcome], multiple: float, right: Answer) -> str:
    sizes = [
        one.trial.size for one in outcomes if one.share(GALLEY, ALLOWED * multiple, right) >= POWER
    ]
    return f"{min(sizes):,}" if sizes else f"over {max(one.trial.size for one in outcomes):,}"


def _wrong_rows(outcomes: Iterable[Outcome]) -> Iterator[list[str]]:
    for one in _around(outcomes):
        yield [
            one.trial.service.name,
            f"{one.trial.size:,}",
            *(f"{one.share(name, ALLOWED * 1.5, Answer.PASS):.0%}" for name in (GALLEY, *RULES)),
        ]


if __name__ == "__main__":
    sys.exit(main())
