"""galley loadtest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serving.console import Json, print_json, print_line, print_table, say, step_progress

if TYPE_CHECKING:
    from loadtest.concluding import Concluded
    from loadtest.job import Job
    from loadtest.running import Progress

ABOUT = """Load test a model against its SLO: PASS, FAIL, INCONCLUSIVE or INVALID (exit 0, 1, 3, 4).

Requests are sent when the workload's schedule says, whatever became of those before, and latency
counts from that moment. Each run keeps a folder with its verdict, a page (report.html), Markdown
for a pull request, JSON, JUnit XML and the log of every request; the verdict is also kept in the
registry as evidence about the version.

\b
  galley loadtest filetype                        the steady workload at the spec's peak
  galley loadtest ranker --workload burst --rate-rps 200
  galley loadtest ranker --find-max               the highest rate that keeps the SLO
  galley loadtest ranker --curve                  time by batch size, for `galley plan`
  locust -f loadtest/locustfile.py --model ranker    the same with Locust's own page and options

Another gateway than the local stack's: --url, --ca, and the key in GALLEY_KEY.
"""


def loadtest(
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    workload: Annotated[
        str, typer.Option("--workload", help="Name of a workload, or its YAML file.")
    ] = "steady",
    rate_rps: Annotated[
        float | None, typer.Option("--rate-rps", help="Peak rate, instead of the spec's.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="Measured time, exactly this long.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Another schedule and other inputs.")
    ] = None,
    salt: Annotated[
        int | None, typer.Option("--salt", help="The inputs of a run before; else new ones.")
    ] = None,
    p99_ms: Annotated[
        float | None, typer.Option("--p99-ms", help="Limit of p99 latency, instead of the spec's.")
    ] = None,
    error_ratio: Annotated[
        float | None, typer.Option("--error-ratio", help="Share that may fail, instead.")
    ] = None,
    alpha: Annotated[
        float, typer.Option("--alpha", help="Chance of a wrong verdict on each limit.")
    ] = 0.05,
    processes: Annotated[
        int, typer.Option("--processes", min=1, max=64, help="Processes that share the load.")
    ] = 1,
    users: Annotated[int | None, typer.Option("--users", min=1, help="Most open requests.")] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Gateway, instead of the local stack's.")
    ] = None,
    ca: Annotated[
        Path | None, typer.Option("--ca", help="Certificate to trust, with --url.")
    ] = None,
    find_max: Annotated[
        bool, typer.Option("--find-max", help="Search the highest rate that keeps the SLO.")
    ] = False,
    width: Annotated[
        float, typer.Option("--width", min=0.01, max=1, help="How close --find-max comes.")
    ] = 0.05,
    curve: Annotated[
        bool, typer.Option("--curve", help="Measure time by batch size on one replica.")
    ] = False,
    calibrate: Annotated[
        bool, typer.Option("--calibrate/--no-calibrate", help="Measure the generator first.")
    ] = True,
    evidence: Annotated[
        bool, typer.Option("--evidence/--no-evidence", help="Keep it with the version.")
    ] = True,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run; a new one if not given.")
    ] = None,
    home: Annotated[Path | None, typer.Option("--home", help="Folder of the local stack.")] = None,
    json: Json = False,
) -> None:
    """See ABOUT, which is what `--help` shows."""
    from loadtest.keeping import keep
    from loadtest.settling import settle

    job = settle(
        model,
        workload,
        home=home,
        url=url,
        ca=ca,
        rate_rps=rate_rps,
        seconds=seconds,
        exact=seconds is not None,
        seed=seed,
        salt=salt,
        latency_p99_ms=p99_ms,
        error_ratio=error_ratio,
        alpha=alpha,
        max_in_flight=users,
    )
    if curve:
        _curve(job, keeps=evidence, json=json)
        return
    if find_max:
        raise typer.Exit(
            _maximum(job, processes, width, calibrate=calibrate, keeps=evidence, json=json)
        )
    _announce(job)
    found = _tested(job, out, processes, calibrate=calibrate)
    told = keep(found) if evidence else None
    _print(found, told, json=json)
    raise typer.Exit(found.verdict.exit_code)


def _curve(job: Job, *, keeps: bool, json: bool) -> None:
    from dataclasses import asdict
    from json import dumps

    from loadtest.curve import curve_rows, measure_curve
    from loadtest.keeping import keep_about

    with step_progress(f"curve {job.spec.name}", 2) as tell:
        found = measure_curve(
            job, lambda done, total: tell(2 * done // total, f"{done} of {total}")
        )
    points = {str(point.batch): point.ms for point in found.curve.points}
    crowd = asdict(found.crowd)
    kept = None
    if keeps:
        said = {"curve": dumps(points), "crowd": dumps(crowd)}
        kept = keep_about(job, "batch-curve", said=said)
    if json:
        print_json({"curve_ms": points, "crowd": crowd, "evidence": kept})
        return
    print_table(("batch size", "ms", "rows a second"), curve_rows(found.curve))
    gained = found.crowd.rate_rps / found.crowd.alone_rps
    print_line(
        f"{found.crowd.clients} clients with one row each: {found.crowd.rate_rps:,.0f} rows a "
        f"second in batches of {found.crowd.batch_size:.1f}, {gained:.2f} times what rows on their "
        f"own would make ({found.crowd.alone_rps:,.0f})"
    )
    if kept is not None:
        print_line(f"kept as evidence: {kept}; `galley plan` reckons with it")


def _maximum(
    job: Job, processes: int, width: float, *, calibrate: bool, keeps: bool, json: bool
) -> int:
    from dataclasses import asdict
    from json import dumps

    from loadtest.finding import find_maximum
    from loadtest.keeping import keep_about
    from loadtest.server_stats import replicas_of

    with step_progress(f"find-max {job.spec.name}", 100) as tell:

        def watch(doing: str, progress: Progress) -> None:
            done = 100 * progress.ended // max(progress.total, 1)
            tell(min(done, 100), f"{doing}: {progress.phase}")

        found = find_maximum(
            job,
            processes=processes,
            width=width,
            calibrate=calibrate,
            watch=watch,
            told=say,
        )
    replicas = len(replicas_of(job))
    probes = [asdict(probe) for probe in found.search.probes]
    kept = None
    if keeps and found.rate_rps is not None:
        said = {"maximum": dumps({"replicas": replicas, "probes": probes})}
        kept = keep_about(job, "maximum", rate_rps=found.rate_rps, verdict="PASS", said=said)
    confidence = 1 - found.alpha
    if json:
        told = {"rate_rps": found.rate_rps, "confidence": confidence, "replicas": replicas}
        print_json({**told, "probes": probes, "folders": found.folders, "evidence": kept})
    elif found.rate_rps is None:
        print_line("no rate was confirmed; see the verdicts above")
    else:
        print_line(
            f"{job.spec.name} keeps its SLO at {found.rate_rps:,.4g} rps or more, with "
            f"{confidence:.0%} confidence ({replicas} replicas)"
        )
        if kept is not None:
            print_line(f"kept as evidence: {kept}; `galley plan` reckons with it")
    return 0 if found.rate_rps is not None else 3


def _announce(job: Job) -> None:
    from serving.judge.objectives import smallest_run

    schedule = job.schedule
    least = smallest_run(job.objectives, job.alpha)
    measured = int(schedule.measured.sum())
    lasts = (schedule.until - schedule.warmup_until) / 1e9
    up_to = "" if job.exact or job.workload.exact else "at most "
    say(
        f"{job.spec.name}: workload {job.workload.name}, seed {job.seed}, {up_to}{measured:,} "
        f"requests in {lasts:,.0f} s after {schedule.warmup_until / 1e9:.0f} s of warm-up; a PASS "
        f"takes {least:,} independent ones"
    )
    if measured < least:
        say("that is too few for a PASS: the best this run can be is INCONCLUSIVE")


def _tested(job: Job, out: Path | None, processes: int, *, calibrate: bool) -> Concluded:
    from loadtest.testing import load_test

    total = len(job.schedule)
    with step_progress(f"loadtest {job.spec.name}", total) as tell:

        def watch(doing: str, progress: Progress) -> None:
            # A calibration is no part of the run's own count.
            done = progress.ended if progress.total == total else 0
            tell(min(done, total), f"{doing}, {progress.seconds_left:.0f} s at most to go")

        return load_test(job, folder=out, processes=processes, calibrate=calibrate, watch=watch)


def _print(found: Concluded, kept: str | None, *, json: bool) -> None:
    from loadtest import account
    from loadtest.verdict_table import print_verdict

    page = found.run.folder / account.REPORT_PAGE
    if json:
        told: dict[str, Any] = {
            "folder": str(found.run.folder),
            "page": str(page),
            "evidence": kept,
        }
        report = found.report
        told |= {
            "model": report.model,
            "version": report.version,
            "workload": report.workload["name"],
            "requests": report.requests,
            "schedule_digest": report.schedule_digest,
            "percentiles_ms": report.percentiles_ms,
            "outcomes": report.outcomes,
            "replay": report.replay_command,
        }
        print_json({**found.verdict.as_json(), **told})
        return
    notes = [f"page: {page}", f"the same run again: {found.report.replay_command}"]
    if kept is not None:
        notes.append(f"kept as evidence: {kept}")
    print_verdict(found.verdict, notes)
