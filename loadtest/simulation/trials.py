"""Trials of the judge: services of which it is known how many requests are bad.

A trial simulates many runs, sets limits that a known share of requests exceeds, and counts what
each judge says. At the boundary, where exactly the allowed share is bad, every PASS is a wrong one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np

from loadtest.simulation.others import RULES
from loadtest.simulation.queues import Service, Traces, simulate, true_limits
from serving.judge.judging import Looks, judge
from serving.judge.measuring import measure
from serving.judge.objectives import Objective
from serving.judge.run import Run, run_of_seconds
from serving.judge.verdict import Answer

ALLOWED: Final = 0.01
SERVICE_MS: Final = 20.0
"""Mean service time; Locust's rounding depends on it."""
GALLEY: Final = "galley"
NEVER_MS: Final = 1e9


@dataclass(frozen=True)
class Trial:
    """Runs of one service, judged at limits that `bad_ratios` of its requests exceed."""

    service: Service
    size: int
    runs: int
    bad_ratios: tuple[float, ...] = (ALLOWED,)
    seed: int = 1
    truth_requests: int = 2_000_000

    @property
    def warmup(self) -> int:
        """Requests until the queue has forgotten that it began empty."""
        return 20_000 if self.service.utilisation > 0.8 else 5_000


@dataclass(frozen=True)
class Outcome:
    """How often each judge gave each answer, by the true share of bad requests."""

    trial: Trial
    tallies: dict[tuple[str, float], Counter[Answer]]
    median_tau: float

    def share(self, judge_name: str, bad_ratio: float, answer: Answer) -> float:
        """Share of the runs in which this judge gave this answer."""
        return self.tallies[judge_name, bad_ratio][answer] / self.trial.runs


def run_trial(trial: Trial, *, others: bool = True, looks: tuple[int, ...] = ()) -> Outcome:
    """Judge every run; with `looks`, after each of these numbers of requests until a verdict."""
    limits = limits_of(trial)
    traces = simulate(trial.service, trial.runs, trial.size, trial.warmup, trial.seed)
    tallies: dict[tuple[str, float], Counter[Answer]] = {}
    taus = []
    objectives = [Objective("latency", ALLOWED, limit_ms=limit * SERVICE_MS) for limit in limits]
    for place in range(trial.runs):
        answers, tau = _judged(traces, place, objectives, looks)
        taus.append(tau)
        # Other tools give a failure some time; here it is one that exceeds any limit.
        latencies = np.sort(np.minimum(traces.latencies[place], NEVER_MS)) * SERVICE_MS
        for ratio, objective, answer in zip(trial.bad_ratios, objectives, answers, strict=True):
            tallies.setdefault((GALLEY, ratio), Counter())[answer] += 1
            for name, rule in RULES.items() if others else ():
                said = rule(latencies, objective.limit_ms or 0.0)
                tallies.setdefault((name, ratio), Counter())[said] += 1
    return Outcome(trial, tallies, float(np.median(taus)))


def limits_of(trial: Trial) -> tuple[float, ...]:
    """The limits in service times; with spells of failures every limit is beyond the answers."""
    if trial.service.kind == "failing spells":
        return (50.0,) * len(trial.bad_ratios)
    return true_limits(
        trial.service,
        trial.bad_ratios,
        trial.size,
        trial.warmup,
        trial.seed + 1_000_003,
        trial.truth_requests,
    )


def _judged(
    traces: Traces, place: int, objectives: list[Objective], looks: tuple[int, ...]
) -> tuple[list[Answer], float]:
    how: Looks = "anytime" if looks else "once"
    answers = [Answer.INCONCLUSIVE] * len(objectives)
    tau = 1.0
    for size in looks or (traces.arrivals.shape[1],):
        evidence = measure(run_at(traces, place, size), objectives)
        tau = evidence.tau
        for n, objective in enumerate(objectives):
            if answers[n] in (Answer.INCONCLUSIVE, Answer.INVALID):
                answers[n] = judge(evidence, [objective], looks=how).answer
    return answers, tau


def run_at(traces: Traces, place: int, size: int) -> Run:
    """The first `size` requests of one run, as a load generator records them."""
    due = traces.arrivals[place, :size] * SERVICE_MS / 1e3
    took = traces.latencies[place, :size] * SERVICE_MS / 1e3
    good = np.isfinite(took)
    return run_of_seconds(due, due + np.where(good, took, 1e-3), ok=good)
