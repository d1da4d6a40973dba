"""A report as Markdown, for the comment on a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from loadtest.report.words import count, milliseconds, rate, share

if TYPE_CHECKING:
    from loadtest.report.report import Report

MARKS = {"PASS": "✅", "FAIL": "❌", "INCONCLUSIVE": "❔", "INVALID": "⚠️"}


def render_markdown(report: Report) -> str:
    """The verdict and why, and the rest folded away."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    answer = report.verdict["verdict"]
    which = "" if report.version is None else f" version {report.version}"
    yield f"### {MARKS.get(answer, '')} {answer}: {_safe(report.model)}{which}"
    yield ""
    yield (
        f"{count(report.requests)} requests of workload `{_safe(report.workload['name'])}` at "
        f"{rate(report.rate_rps)}; p99 {milliseconds(report.percentiles_ms.get('p99'))}."
    )
    yield ""
    for fault in report.verdict["faults"]:
        yield f"- **{_safe(fault['what'])}**: {_safe(fault['message'])}"
    for gate in report.verdict["gates"]:
        yield f"- **{_safe(gate['gate'])}**: {_safe(gate['reason'])}"
        if gate["would_help"]:
            yield f"  - what would help: {_safe(gate['would_help'])}"
    yield ""
    yield from _table(
        ("gate", "verdict", "limit", "observed", "bad", "bad at most", "allowed"),
        [_gate(gate) for gate in report.verdict["gates"]],
    )
    yield ""
    yield "<details><summary>The run</summary>"
    yield ""
    yield from _table(
        ("percentile", "from the intended send", "from the real send"), _times(report)
    )
    yield ""
    yield from _table(("outcome", "requests"), [(k, count(v)) for k, v in report.outcomes.items()])
    yield ""
    yield f"Schedule `{report.schedule_digest[:16]}`, seed {report.seed}. The same run again:"
    yield ""
    yield "```sh"
    yield report.replay_command
    yield "```"
    yield ""
    yield "</details>"


def _gate(gate: dict[str, Any]) -> tuple[str, ...]:
    limit = gate["limit_ms"]
    observed = gate["observed_ms"]
    return (
        gate["gate"],
        gate["verdict"],
        "" if limit is None else milliseconds(limit),
        share(gate["bad_ratio"]) if observed is None else milliseconds(observed),
        f"{count(gate['bad'])} of {count(gate['n'])}",
        share(gate["bad_ratio_upper"]),
        share(gate["bad_ratio_allowed"]),
    )


def _times(report: Report) -> list[tuple[str, ...]]:
    return [
        (name, milliseconds(value), milliseconds(report.service_percentiles_ms.get(name)))
        for name, value in report.percentiles_ms.items()
    ]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield "| " + " | ".join(_safe(cell).replace("|", "\\|") for cell in row) + " |"


def _safe(text: str) -> str:
    """Text that cannot become markup, a mention or a second line."""
    plain = " ".join(str(text).split())
    for letter in ("\\", "`", "*", "_", "<", ">", "[", "]", "@", "#"):
        plain = plain.replace(letter, f"\\{letter}" if letter != "@" else "@\u200b")
    return plain
