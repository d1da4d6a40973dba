"""From the files of a run to evidence and verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np

from loadtest import account
from loadtest.account import Account
from loadtest.job import Job, job_from
from loadtest.records import Records
from serving.errors import InputError
from serving.judge.evidence import Evidence, Generator
from serving.judge.judging import Looks, judge
from serving.judge.littles_law import LittlesLaw, littles_law
from serving.judge.measuring import measure
from serving.judge.objectives import Objective
from serving.judge.run import NEVER, Run
from serving.judge.verdict import Answer, Verdict

LATE: Final = frozenset({"dispatch lag", "event loop lag", "generator CPU", "calibration"})
"""Faults of a generator that was too slow: latencies look longer than they were."""
DEAF_RATIO: Final = 0.01
FORGIVING: Final = ("latency", "errors")
FORGIVEN: Final = (
    "the generator was not fit for a promise as strict as this one; the service breaks it even "
    "when all that the generator was late is forgiven"
)

When = Literal["at the end", "on the way", "at any time"]

EARLY: Final = 0.1
"""Part of alpha that is spent on looks at a run that goes on. They can only end in FAIL, so a FAIL
is wrong with probability 1.1 alpha at most."""


@dataclass(frozen=True)
class Finished:
    """A run's folder, read."""

    folder: Path
    job: Job
    account: Account | None
    records: Records

    @property
    def workers_lost(self) -> int:
        """Workers that never gave an account; all of them where there is none at all."""
        return 1 if self.account is None else len(self.account.lost)

    @property
    def observed_until(self) -> int:
        """When watching ended, ns after the start of the run."""
        rows = self.records.rows
        known = [rows[name][rows[name] != NEVER] for name in ("intended", "sent", "ended")]
        last = max((int(column.max()) for column in known if len(column)), default=0)
        if self.account is None:
            return last
        return max(last, round((self.account.ended_unix - self.account.started_unix) * 1e9))


def read(folder: Path) -> Finished:
    """The run that is kept in a folder.

    Raises:
        InputError: it holds none.
    """
    try:
        job = job_from((folder / account.JOB).read_bytes())
    except OSError as error:
        raise InputError(f"{folder}: holds no load test ({error.strerror})") from None
    return Finished(folder, job, account.read(folder), Records.read(folder / account.RECORDS))


def evidence_of(
    run: Finished,
    *,
    broken_off_at: int | None = None,
    server_restarts: int | None = None,
    calibrated_rps: float | None = None,
) -> Evidence:
    """What the run holds about what is promised.

    Args:
        run: the run.
        broken_off_at: only requests due before it count, ns after the start; None for all.
        server_restarts: how often the model servers were seen to start again.
        calibrated_rps: rate up to which this generator is to be believed on this machine.
    """
    job = run.job
    kept = run.records.measured(job.schedule, broken_off_at)
    measured = job.schedule.intended[job.schedule.measured]
    expected = len(measured)
    if broken_off_at is not None:
        expected = int((measured < broken_off_at).sum())
    parts = () if run.account is None else run.account.parts
    digests = {part.schedule_digest for part in parts} - {job.schedule.digest}
    said = Generator(
        cpu_ratio=_largest(part.cpu_ratio for part in parts),
        loop_lag_p99_ms=_largest(part.loop_lag_p99_ms for part in parts),
        # A worker that followed another schedule did not take part in this run.
        workers_lost=run.workers_lost + len(digests),
        expected_requests=expected,
        server_restarts=server_restarts,
        calibrated_rps=calibrated_rps,
        cache_hits_beyond=_beyond(kept.cache_hit_ratio, 1 - job.workload.distinct_ratio),
    )
    recorded = kept.run(run.observed_until, tokens=job.by_token)
    found = measure(recorded, job.objectives, said)
    return replace(found, law=_worst_law(kept, run.observed_until) or found.law)


def verdict_of(
    run: Finished,
    evidence: Evidence,
    when: When = "at the end",
    broken_off_at: int | None = None,
) -> Verdict:
    """The verdict on it.

    A generator that was late makes a run INVALID, unless the service breaks its promise even when
    all that the generator was late is forgiven: then it FAILs.

    Args:
        run: the run.
        evidence: of the run.
        broken_off_at: only requests due before it count, ns after the start; None for all.
        when: `at the end` of the length that was planned; `on the way`, where FAIL alone may be
            acted on; or `at any time`, where PASS may be as well, at the price of more requests.
    """
    job = run.job
    alpha = job.alpha * EARLY if when == "on the way" else job.alpha
    looks: Looks = "once" if when == "at the end" else "anytime"
    verdict = judge(evidence, job.objectives, alpha=alpha, looks=looks)
    if not verdict.faults or not all(fault.what in LATE for fault in verdict.faults):
        return verdict
    promised = forgiving(job.objectives)
    generous = measure(forgiven(run, evidence, broken_off_at), promised)
    second = judge(generous, promised, alpha=alpha, looks=looks)
    if second.answer is not Answer.FAIL:
        return verdict
    timed = (one for one in job.objectives if one.metric in FORGIVING)
    gates = tuple(
        replace(gate, objective=one) for gate, one in zip(second.gates, timed, strict=True)
    )
    return replace(verdict, answer=second.answer, gates=gates, notes=(FORGIVEN,))


def forgiven(run: Finished, evidence: Evidence, broken_off_at: int | None = None) -> Run:
    """The run as if each request had been due when it was sent, and been heard of at once.

    How late it was sent is known of each request; of how late it was heard of, the 99th percentile.
    """
    kept = run.records.measured(run.job.schedule, broken_off_at)
    recorded = kept.run(run.observed_until, tokens=run.job.by_token)
    deaf = round((evidence.generator.loop_lag_p99_ms or 0.0) * 1e6)
    was_sent = (recorded.sent != NEVER) & (recorded.ended != NEVER)
    ended = np.where(was_sent, np.maximum(recorded.ended - deaf, recorded.sent), recorded.ended)
    due = np.where(recorded.sent != NEVER, recorded.sent, recorded.intended)
    return replace(recorded, intended=due, ended=ended, in_flight=None)


def forgiving(objectives: tuple[Objective, ...]) -> tuple[Objective, ...]:
    """The promises, with as many more bad requests as may have been heard of even later."""
    return tuple(
        replace(one, allowed_ratio=min(one.allowed_ratio + DEAF_RATIO, 0.999))
        for one in objectives
        if one.metric in FORGIVING
    )


def bound_to_fail(run: Finished, cut: int) -> bool:
    """Whether a run that goes on has failed already, whatever is still to come."""
    return _so_far(run, cut, "on the way").answer is Answer.FAIL


def decided(run: Finished, cut: int) -> bool:
    """Whether a run that goes on can be judged already, either way."""
    return _so_far(run, cut, "at any time").answer in (Answer.PASS, Answer.FAIL)


def _so_far(run: Finished, cut: int, when: When) -> Verdict:
    return verdict_of(run, evidence_of(run, broken_off_at=cut), when, cut)


def _worst_law(kept: Records, until: int) -> LittlesLaw | None:
    """Little's law on each worker's own count of open requests; the one that fits worst."""
    laws: list[LittlesLaw] = []
    for worker in kept.workers():
        law = littles_law(kept.of_worker(worker).run(until))
        if law is not None:
            laws.append(law)
    return min(laws, key=lambda law: (law.holds, law.independent), default=None)


def _beyond(found: float | None, expected: float) -> float | None:
    return None if found is None else max(found - expected, 0.0)


def _largest(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known, default=None)
