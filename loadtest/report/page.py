"""A report as one HTML file that needs nothing else: no network, no script, no font.

The verdict and why come first, in words and colour; pictures after that; then all the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from loadtest.report.charts import Line, Tick, cdf_chart, interval_bar, time_chart
from loadtest.report.style import STYLE
from loadtest.report.words import count, milliseconds, rate, share

if TYPE_CHECKING:
    from loadtest.report.report import Report, Second

SAYS = {
    "PASS": "keeps what is promised",
    "FAIL": "breaks what is promised",
    "INCONCLUSIVE": "cannot be told yet: the run is sound, and too short",
    "INVALID": "cannot be told: the measurement itself is not to be trusted",
}


def render_page(report: Report) -> str:
    """The page; the same report gives the same bytes."""
    answer = str(report.verdict["verdict"])
    title = f"{answer}: {report.model}, {report.workload.get('name', '')}"
    body = "".join(_sections(report, answer))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def _sections(report: Report, answer: str) -> Iterator[str]:
    yield from _verdict(report, answer)
    yield _figures(report)
    yield '<div class="charts">'
    yield from _charts(report)
    yield "</div>"
    yield from _details(report)


def _verdict(report: Report, answer: str) -> Iterator[str]:
    which = "" if report.version is None else f" version {report.version}"
    yield (
        f'<header class="verdict {escape(answer.lower())}"><p class="word">{escape(answer)}</p>'
        f"<div><h1>{escape(report.model)}{which}</h1><p>{escape(SAYS.get(answer, ''))}</p></div>"
        "</header>"
    )
    faults = report.verdict["faults"]
    if faults:
        rows = "".join(
            f"<li><b>{escape(fault['what'])}</b>: {escape(fault['message'])}</li>"
            for fault in faults
        )
        why = "Why it is not to be trusted"
        yield f'<section class="faults"><h2>{why}</h2><ul>{rows}</ul></section>'
    yield '<section class="gates"><h2>What was promised</h2>'
    yield f'<p class="quiet">{escape(report.because)}</p>'
    for gate in report.verdict["gates"]:
        yield _gate(gate)
    yield "</section>"


def _gate(gate: dict[str, Any]) -> str:
    limit = "" if gate["limit_ms"] is None else f" ≤ {milliseconds(gate['limit_ms'])}"
    observed = (
        "" if gate["observed_ms"] is None else f", observed {milliseconds(gate['observed_ms'])}"
    )
    help_ = gate["would_help"]
    helped = f'<p class="help">What would help: {escape(help_)}</p>' if help_ else ""
    bar = interval_bar(
        f"share of bad requests for {gate['gate']}: seen {share(gate['bad_ratio'])}, between "
        f"{share(gate['bad_ratio_lower'])} and {share(gate['bad_ratio_upper'])}, allowed "
        f"{share(gate['bad_ratio_allowed'])}",
        gate["bad_ratio_lower"],
        gate["bad_ratio_upper"],
        gate["bad_ratio"],
        gate["bad_ratio_allowed"],
    )
    return (
        f'<article class="gate"><h3><span class="tag {escape(str(gate["verdict"]).lower())}">'
        f"{escape(str(gate['verdict']))}</span> {escape(gate['gate'])}{limit}{observed}</h3>"
        f"<p>{escape(gate['reason'])}</p>{bar}{helped}</article>"
    )


def _figures(report: Report) -> str:
    p99 = report.percentiles_ms.get("p99")
    failed = report.requests - report.outcomes.get("200", 0)
    figures = [
        (milliseconds(report.percentiles_ms.get("p50")), "p50 from the intended send"),
        (milliseconds(p99), "p99 from the intended send"),
        (rate(_offered(report)), "offered"),
        (count(report.requests), "requests measured"),
        (count(failed), "not answered well"),
    ]
    for name, found in report.token_percentiles_ms.items():
        figures.append((milliseconds(found.get("p99")), f"p99 {name}"))
    if report.server is not None:
        figures.append((f"{report.server.batch_size:.1f}", "rows in a batch"))
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for value, name in figures
    )
    return f'<dl class="figures">{cells}</dl>'


def _offered(report: Report) -> float | None:
    return report.requests / report.seconds if report.seconds > 0 else None


def _charts(report: Report) -> Iterator[str]:
    series = report.series
    warm = next((one.at_seconds for one in series if one.phase == "measured"), 0.0)
    limits = [
        Tick(gate["limit_ms"], f"limit {gate['limit_ms']:g} ms")
        for gate in report.verdict["gates"]
        if gate["limit_ms"] is not None and str(gate["gate"]).startswith("latency")
    ]
    limit = limits[0].at if limits else None
    if report.cdf:
        yield _figure(
            "Latency by share of requests",
            cdf_chart("latency by share of requests, the tail spread out", report.cdf, limits),
        )
    if not series:
        return
    yield _figure(
        "Latency over time",
        time_chart(
            "p50 and p99 of latency in each second",
            [
                Line("p99", [(one.at_seconds, one.p99_ms) for one in series], "two"),
                Line("p50", [(one.at_seconds, one.p50_ms) for one in series], "one"),
            ],
            "ms",
            shaded_until=warm,
            limit=limit,
        ),
        [("one", "p50"), ("two", "p99")],
    )
    yield _figure(
        "Offered against answered",
        time_chart(
            "requests a second that were due, and that were answered well",
            [
                Line("offered", _per_second(series, "offered"), "three", area=True),
                Line("answered well", _per_second(series, "answered"), "one"),
                Line("not answered well", _per_second(series, "failed"), "bad"),
            ],
            "rps",
            shaded_until=warm,
        ),
        [("three", "due"), ("one", "answered well"), ("bad", "not answered well")],
    )
    yield _figure(
        "Requests in flight",
        time_chart(
            "mean number of open requests in each second",
            [
                Line(
                    "in flight",
                    [(one.at_seconds, one.in_flight) for one in series],
                    "one",
                    area=True,
                )
            ],
            "requests",
            shaded_until=warm,
        ),
    )
    if report.server is not None:
        yield from _server_charts(series, warm)


def _server_charts(series: Sequence[Second], warm: float) -> Iterator[str]:
    yield _figure(
        "Time in the model server",
        time_chart(
            "mean time in the server's queue and computing",
            [
                Line("queue", [(one.at_seconds, one.queue_ms) for one in series], "two"),
                Line("compute", [(one.at_seconds, one.compute_ms) for one in series], "one"),
            ],
            "ms",
            shaded_until=warm,
        ),
        [("two", "queue"), ("one", "compute")],
    )
    yield _figure(
        "Batch fill",
        time_chart(
            "mean rows in an execution",
            [Line("rows", [(one.at_seconds, one.batch_size) for one in series], "one")],
            "rows",
            shaded_until=warm,
        ),
    )


def _per_second(series: Sequence[Second], name: str) -> list[tuple[float, float | None]]:
    return [(one.at_seconds, getattr(one, name) / one.seconds) for one in series]


def _figure(title: str, picture: str, legend: Sequence[tuple[str, str]] = ()) -> str:
    keys = "".join(f'<span class="key {look}">{escape(text)}</span>' for look, text in legend)
    legends = f'<span class="legend">{keys}</span>' if keys else ""
    return f"<figure><figcaption>{escape(title)}{legends}</figcaption>{picture}</figure>"


def _details(report: Report) -> Iterator[str]:
    health = report.generator
    yield "<section><h2>Whether the generator was well</h2>"
    yield _table(
        ("", "found", "must be"),
        [
            ("requests recorded", f"{count(health.recorded)} of {count(health.expected)}", "all"),
            ("workers lost", f"{health.workers_lost} of {health.workers}", "0"),
            (
                "p99 of sending late",
                _ms(health.dispatch_lag_p99_ms),
                _at_most(health.lag_budget_ms),
            ),
            ("p99 of waking late", _ms(health.loop_lag_p99_ms), _at_most(health.lag_budget_ms)),
            ("busiest core", share(health.cpu_ratio), "below 80 %"),
            ("answered by a cache", share(health.cache_hit_ratio), "what the workload repeats"),
            ("calibrated for", rate(health.calibrated_rps), f"above {rate(_offered(report))}"),
        ],
    )
    yield "</section><section><h2>Percentiles</h2>"
    names = list(report.percentiles_ms)
    columns: list[tuple[str, dict[str, float | None]]] = [
        ("from the intended send", report.percentiles_ms),
        ("from the real send", report.service_percentiles_ms),
        *report.token_percentiles_ms.items(),
    ]
    yield _table(
        ("", *(title for title, _ in columns)),
        [(name, *(milliseconds(found.get(name)) for _, found in columns)) for name in names],
    )
    yield "</section><section><h2>How requests ended</h2>"
    yield _table(("status", "requests"), [(word, count(n)) for word, n in report.outcomes.items()])
    yield "</section><section><h2>The same run again</h2>"
    yield f"<pre>{escape(report.replay_command)}</pre>"
    yield _table(
        ("", ""),
        [
            ("schedule", report.schedule_digest),
            ("seed", str(report.seed)),
            ("peak rate", rate(report.rate_rps)),
            ("workload", f"{report.workload.get('name')}: {report.workload.get('because', '')}"),
            ("environment", report.environment),
            ("digest of the version", report.digest or "not known"),
            ("started", report.started),
            ("measured", f"{report.seconds:g} s" + (", broken off" if report.broken_off else "")),
            ("galley", report.galley_version),
        ],
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.verdict.get("notes", ()))
    yield (f"<ul>{notes}</ul>" if notes else "") + "</section>"


def _ms(value: float | None) -> str:
    return "not measured" if value is None else milliseconds(value)


def _at_most(value: float | None) -> str:
    return "" if value is None else f"at most {milliseconds(value)}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    head = f"<thead><tr>{head}</tr></thead>" if any(columns) else ""
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>'
