"""galley judge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadtest.verdict_table import print_verdict
from serving.console import Json, print_json, say

if TYPE_CHECKING:
    from loadtest.recordings.rows import Recording
    from serving.judge.objectives import Objective
    from serving.judge.run import Run

ABOUT = """Judge a recorded run: PASS, FAIL, INCONCLUSIVE or INVALID (exit 0, 1, 3, 4).

Reads CSV or JSON lines with a row for each request, and the logs of k6 (--out json), vegeta
(encode), GuideLLM (JSON report) and AIPerf (profile_export.jsonl); several files are the parts of
one run. Columns, each time with its unit (ns, us, ms, seconds; or _at for RFC 3339):

\b
  intended_start_ms   when the schedule wanted it sent
  start_ms            when it was sent; empty: never
  end_ms              when it was answered or failed; empty: still open
  latency_ms          instead of end_ms, or by a second clock
  status              ok, an HTTP status, or error, timeout, dropped, generator_error, ...
  first_token_ms, inter_token_latency_ms, in_flight, phase (warmup, measured)

Latency counts from the intended start. Without one, slow answers held back requests that would
have been slow too, and the best verdict is INCONCLUSIVE.
"""


def judge(
    files: Annotated[list[Path], typer.Argument(help="Log of a run, or its parts.")],
    slo: Annotated[str | None, typer.Option("--slo", help="Model whose SLO to judge by.")] = None,
    p99_ms: Annotated[float | None, typer.Option("--p99-ms", help="Limit of p99 latency.")] = None,
    quantile_ms: Annotated[
        list[str] | None,
        typer.Option("--quantile-ms", help="Any other limit, as 0.999=80; several times."),
    ] = None,
    first_token: Annotated[
        float | None,
        typer.Option("--time-to-first-token-p99-ms", help="Limit of p99 first token."),
    ] = None,
    inter_token: Annotated[
        float | None,
        typer.Option("--inter-token-latency-p99-ms", help="Limit of p99 between tokens."),
    ] = None,
    error_ratio: Annotated[
        float | None, typer.Option("--error-ratio", help="Share that may fail, 0 to 1.")
    ] = None,
    min_rps: Annotated[
        float | None, typer.Option("--min-rps", help="Requests a second it must bear.")
    ] = None,
    alpha: Annotated[
        float, typer.Option("--alpha", help="Chance of a wrong verdict on each limit.")
    ] = 0.05,
    anytime: Annotated[
        bool, typer.Option("--anytime", help="The run goes on and is judged again and again.")
    ] = False,
    log_format: Annotated[
        str | None, typer.Option("--format", help="Format, where it cannot be told.")
    ] = None,
    benchmark: Annotated[
        int | None, typer.Option("--benchmark", help="Which of a GuideLLM report, from 1.")
    ] = None,
    scheduled_rps: Annotated[
        float | None,
        typer.Option("--scheduled-rps", help="It kept to this constant rate; schedule from it."),
    ] = None,
    warmup_seconds: Annotated[
        float, typer.Option("--warmup-seconds", help="Leave out what was due before.")
    ] = 0.0,
    expected_requests: Annotated[
        int | None, typer.Option("--expected-requests", help="Size of the schedule.")
    ] = None,
    fastest_believable_ms: Annotated[
        float | None,
        typer.Option("--fastest-believable-ms", help="A median below it is INVALID."),
    ] = None,
    accept_closed_loop: Annotated[
        bool,
        typer.Option("--accept-closed-loop", help="Count latency from sending; knowing better."),
    ] = False,
    specs: Annotated[Path | None, typer.Option("--specs", help="Folder of specs.")] = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="Also write JUnit XML.")] = None,
    json: Json = False,
) -> None:
    """See ABOUT, which is what `--help` shows."""
    from serving.judge.evidence import Generator
    from serving.judge.judging import judge as judged
    from serving.judge.measuring import measure
    from serving.judge.objectives import quantile_objective, smallest_run
    from serving.judge.validity import Limits

    objectives = _of_spec(slo, specs)
    timed = (("latency", p99_ms), ("time_to_first_token", first_token))
    for metric, limit in (*timed, ("inter_token_latency", inter_token)):
        if limit is not None:
            objectives.append(quantile_objective(metric, 0.99, limit))  # type: ignore[arg-type]
    objectives += _of_options(quantile_ms or [], error_ratio, min_rps)
    _promised(objectives)
    recordings = [_read(path, log_format, benchmark) for path in files]
    run = _prepared(recordings, scheduled_rps, warmup_seconds)
    least = smallest_run(objectives, alpha)
    say(f"{least:,} independent requests are the least that a PASS takes")
    evidence = measure(run, objectives, Generator(expected_requests=expected_requests))
    verdict = judged(
        evidence,
        objectives,
        alpha=alpha,
        looks="anytime" if anytime else "once",
        limits=Limits(fastest_believable_ms=fastest_believable_ms),
        accept_closed_loop=accept_closed_loop,
    )
    notes = [
        f"{path.name}: {len(one.run):,} requests, read as {one.format}"
        + "".join(f"; {note}" for note in one.notes)
        for path, one in zip(files, recordings, strict=True)
    ]
    if junit is not None:
        from loadtest.junit import write_junit

        write_junit(verdict, ", ".join(path.name for path in files), junit)
    if json:
        from json import loads

        from serving.judge.stored import as_text

        told = {"files": notes, "smallest_sample": least, "evidence": loads(as_text(evidence))}
        print_json({**verdict.as_json(), **told})
    else:
        print_verdict(verdict, notes)
    raise typer.Exit(verdict.exit_code)


def _of_spec(slo: str | None, specs: Path | None) -> list[Objective]:
    if slo is None:
        return []
    from serving.judge.objectives import objectives_of
    from serving.paths import specs_folder
    from serving.publish import spec_of
    from serving.spec import load_spec

    path = Path(slo)
    spec = load_spec(path) if path.suffix == ".yaml" else spec_of(slo, specs or specs_folder())
    return list(objectives_of(spec.slo))


def _of_options(
    quantile_ms: list[str], error_ratio: float | None, min_rps: float | None
) -> list[Objective]:
    from serving.errors import InputError
    from serving.judge.objectives import Objective, quantile_objective, rate_objective

    found = []
    for text in quantile_ms:
        quantile, _, limit = text.partition("=")
        try:
            found.append(quantile_objective("latency", float(quantile), float(limit)))
        except ValueError:
            raise InputError(
                f"--quantile-ms {text} is no quantile with its limit; write 0.999=80 for 80 ms"
            ) from None
    if error_ratio is not None:
        found.append(Objective("errors", error_ratio))
    if min_rps is not None:
        found.append(rate_objective(min_rps))
    return found


def _promised(objectives: list[Objective]) -> None:
    from serving.errors import InputError

    if not objectives:
        raise InputError(
            "nothing is promised, so there is nothing to judge; give --slo MODEL, or limits such "
            "as --p99-ms 50 --error-ratio 0.001"
        )
    names = [objective.name for objective in objectives]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{', '.join(twice)} is given twice; give each limit once")


def _read(path: Path, log_format: str | None, benchmark: int | None) -> Recording:
    from loadtest.recordings.reading import FORMATS, read_recording
    from serving.errors import InputError

    if log_format is not None and log_format not in FORMATS:
        raise InputError(f"--format {log_format} is not known; use {', '.join(FORMATS)}")
    return read_recording(path, log_format, benchmark)


def _prepared(
    recordings: list[Recording], scheduled_rps: float | None, warmup_seconds: float
) -> Run:
    from loadtest.recordings.rows import after_warmup, on_schedule
    from serving.errors import InputError
    from serving.judge.run import merged

    run = merged([recording.run for recording in recordings])
    if scheduled_rps is not None:
        if run.scheduled and len(run):
            raise InputError(
                "--scheduled-rps would replace the schedule that is in the log; leave it out"
            )
        if not scheduled_rps > 0:
            raise InputError(f"--scheduled-rps {scheduled_rps:g} is no rate; give more than 0")
        run = on_schedule(run, scheduled_rps)
    return after_warmup(run, warmup_seconds)
