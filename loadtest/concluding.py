"""`conclude`: from the folder of a run to its verdict and its report, and both to files.

Everything is read from the folder, so whoever doubts a verdict concludes again and gets the same.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from loadtest import account, oversight
from loadtest.calibration import budget_of
from loadtest.job import Job
from loadtest.judging import Finished, When, evidence_of, read, verdict_of
from loadtest.junit import write_junit
from loadtest.oversight import Oversight
from loadtest.report import summary
from loadtest.report.markdown import render_markdown
from loadtest.report.page import render_page
from loadtest.report.report import GeneratorHealth, Report, as_text
from loadtest.server_stats import times_of
from loadtest.workload import WORKLOADS
from serving.judge.evidence import Evidence
from serving.judge.verdict import Verdict

JUNIT: Final = "junit.xml"


@dataclass(frozen=True)
class Concluded:
    """What a run came to."""

    run: Finished
    evidence: Evidence
    verdict: Verdict
    report: Report


def conclude(folder: Path) -> Concluded:
    """Judge the run that is kept in `folder`, and write its reports beside it.

    Raises:
        InputError: it holds no run.
    """
    run, seen = read(folder), oversight.read(folder)
    when: When = "at the end"
    if seen.decided_early:
        when = "at any time"
    elif seen.broken_off_at is not None:
        when = "on the way"
    evidence = evidence_of(
        run,
        broken_off_at=seen.broken_off_at,
        server_restarts=seen.restarts,
        calibrated_rps=seen.calibrated_rps,
    )
    verdict = verdict_of(run, evidence, when, seen.broken_off_at)
    report = report_of(run, seen, evidence, verdict)
    run.records.write_csv(folder / account.REQUESTS_CSV, run.job.schedule)
    (folder / account.REPORT_JSON).write_text(as_text(report) + "\n", encoding="utf-8")
    (folder / account.REPORT_PAGE).write_text(render_page(report), encoding="utf-8")
    (folder / account.REPORT_MARKDOWN).write_text(render_markdown(report), encoding="utf-8")
    write_junit(verdict, f"{run.job.spec.name} {run.job.workload.name}", folder / JUNIT)
    return Concluded(run, evidence, verdict, report)


def report_of(run: Finished, seen: Oversight, evidence: Evidence, verdict: Verdict) -> Report:
    """Everything that is said of the run."""
    job, schedule = run.job, run.job.schedule
    kept = run.records.measured(schedule, seen.broken_off_at)
    times = summary.latencies(kept)
    made = run.account
    started = datetime.fromtimestamp(0 if made is None else made.started_unix, UTC)
    until = schedule.until if seen.broken_off_at is None else seen.broken_off_at
    said = evidence.generator
    return Report(
        model=job.spec.name,
        environment=job.environment,
        version=job.version,
        digest=job.digest,
        started=started.isoformat(timespec="seconds"),
        seconds=round((until - schedule.warmup_until) / 1e9, 3),
        broken_off=seen.broken_off_at is not None,
        workload=job.workload.model_dump(mode="json", exclude_unset=True),
        seed=job.seed,
        rate_rps=job.peak_rps,
        schedule_digest=schedule.digest,
        requests=len(kept),
        verdict=verdict.as_json(),
        because=job.spec.slo.because,
        percentiles_ms=summary.percentiles_ms(times),
        service_percentiles_ms=summary.percentiles_ms(summary.services(kept)),
        token_percentiles_ms=summary.token_percentiles_ms(kept) if job.by_token else {},
        cdf=summary.cdf_of(times),
        series=summary.series_of(run.records, schedule, until, seen.samples),
        outcomes=kept.outcomes(),
        generator=GeneratorHealth(
            workers=0 if made is None else made.workers,
            workers_lost=said.workers_lost or 0,
            expected=said.expected_requests or 0,
            recorded=len(kept),
            cpu_ratio=said.cpu_ratio,
            loop_lag_p99_ms=said.loop_lag_p99_ms,
            dispatch_lag_p99_ms=evidence.lag_p99_ms,
            calibrated_rps=said.calibrated_rps,
            lag_budget_ms=budget_of(job),
            cache_hit_ratio=kept.cache_hit_ratio,
        ),
        server=times_of(seen.samples, seen.restarts or 0),
        replay_command=replay_command(job),
        galley_version=version("galley"),
    )


def replay_command(job: Job) -> str:
    """What to type for the same schedule and the same inputs."""
    words = ["galley", "loadtest", job.spec.name]
    known = (WORKLOADS / f"{job.workload.name}.yaml").exists()
    words += ["--workload", job.workload.name if known else f"{job.workload.name}.yaml"]
    words += ["--seed", str(job.seed), "--salt", str(job.salt)]
    words += ["--rate-rps", f"{job.peak_rps:g}"]
    if job.exact and job.seconds is not None:
        words += ["--seconds", f"{job.seconds:g}"]
    if job.latency_p99_ms is not None:
        words += ["--p99-ms", f"{job.latency_p99_ms:g}"]
    if job.error_ratio is not None:
        words += ["--error-ratio", f"{job.error_ratio:g}"]
    return shlex.join(words)
