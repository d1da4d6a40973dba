"""A verdict as a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from serving.console import print_line, print_table

if TYPE_CHECKING:
    from serving.judge.verdict import Gate, Verdict


def print_verdict(verdict: Verdict, notes: Sequence[str]) -> None:
    """Print why first, then each limit with what was seen, then the verdict."""
    for fault in verdict.faults:
        print_line(f"INVALID  {fault.what}: {fault.message}")
    print_table(
        ("verdict", "gate", "limit", "observed", "bound", "n", "bad", "n_eff", "tau", "allowed"),
        [_row(gate) for gate in verdict.gates],
    )
    for gate in verdict.gates:
        print_line(f"{gate.name}: {gate.reason}" + (f" ({gate.rule})" if gate.rule else ""))
        if gate.would_help:
            print_line(f"  what would help: {gate.would_help}")
    for note in (*notes, *verdict.notes):
        print_line(f"note: {note}")
    print_line(f"{verdict.answer.value}  (confidence {1 - verdict.alpha:.4g} for each limit)")


def _row(gate: Gate) -> tuple[object, ...]:
    objective = gate.objective
    limit = objective.limit_ms if objective.limit_ms is not None else objective.limit_rps
    return (
        gate.answer.value,
        gate.name,
        "" if limit is None else f"{limit:g}",
        _milliseconds(gate.observed_ms) or _share(gate.observed_ratio),
        _milliseconds(gate.bound_ms) or _share(gate.upper),
        gate.n,
        gate.bad,
        f"{gate.n_eff:,.0f}",
        f"{gate.tau:.1f}",
        _share(gate.allowed_ratio),
    )


def _milliseconds(value: float | None) -> str:
    if value is None:
        return ""
    return "never" if value == float("inf") else f"{value:,.3f} ms"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3%}"
