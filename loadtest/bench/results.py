"""How a run is told: JSON for machines, tables for people, a section of RESULTS.md for the record.

Pure functions of what was found.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from loadtest.bench.ratios import ABSOLUTE_TARGETS, TARGETS, Limit, Part, Ratio
from loadtest.bench.sections import markdown_table

BEGIN: Final = "<!-- begin: gateway -->"
END: Final = "<!-- end: gateway -->"
COLUMNS: Final = ("ratio", "median", "lowest", "highest", "rounds", "target", "kept")
ABSOLUTE_COLUMNS: Final = ("figure", "median", "lowest", "highest", "rounds")

NOT_MEASURED: Final = (
    "Network: everything is on loopback, and the load generator is on the same machine.",
    "What happens near saturation, and on more than two cores.",
    "gRPC, HTTP/2 and WebSocket; requests larger than 5 kB; models on GPUs.",
    "LiteLLM with a database, Redis, budgets or callbacks, all of which cost it more.",
    "New TLS connections: all connections are kept.",
)


def as_json(part: Part, machine: Mapping[str, str | int]) -> dict[str, Any]:
    """The run as one document; a ratio that was not measured is null and has a reason."""
    names = [*part.ratios, *(name for name in part.skipped if name not in part.ratios)]
    return {
        "ratios": {name: _rounded(part.ratios.get(name)) for name in names},
        "spread": {
            name: [significant(ratio.low), significant(ratio.high)]
            for name, ratio in {**part.ratios, **part.absolute}.items()
        },
        "absolute": {name: _rounded(ratio) for name, ratio in part.absolute.items()},
        "machine": dict(machine),
        "versions": dict(part.versions),
        "targets": {name: _limit(limit) for name, limit in all_targets().items()},
        "kept": {name: _kept(part, name) for name in all_targets()},
        "skipped": dict(part.skipped),
    }


def all_targets() -> dict[str, Limit]:
    """Every promise by the name of its figure."""
    return {**TARGETS, **ABSOLUTE_TARGETS}


def significant(value: float) -> float:
    """Three digits, which is more than any of these figures is good for.

    >>> significant(1.23456), significant(23077.4), significant(0.0)
    (1.23, 23100.0, 0.0)
    """
    return float(f"{value:.3g}")


def ratio_rows(part: Part) -> list[tuple[str, ...]]:
    """A row for each ratio, those that were not measured last."""
    rows = [_row(name, ratio, TARGETS.get(name)) for name, ratio in part.ratios.items()]
    skipped = [name for name in part.skipped if name not in part.ratios]
    rows += [(name, "not measured", "", "", "", _told(TARGETS.get(name)), "") for name in skipped]
    return rows


def absolute_rows(part: Part) -> list[tuple[str, ...]]:
    """A row for each figure that is not a ratio, with its promise where it has one."""
    return [_row(name, ratio, None)[:5] for name, ratio in part.absolute.items()]


def markdown(part: Part, machine: Mapping[str, str | int]) -> str:
    """The section of RESULTS.md."""
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    versions = ", ".join(f"{name} {value}" for name, value in sorted(part.versions.items()))
    lines = [
        BEGIN,
        f"Machine: {facts}.",
        f"Versions: {versions}.",
        "",
        *markdown_table(COLUMNS, _code(ratio_rows(part))),
        "",
        *(_promise(part, name, limit) for name, limit in ABSOLUTE_TARGETS.items()),
        "",
        *markdown_table(ABSOLUTE_COLUMNS, _code(absolute_rows(part))),
        "",
        "Not measured:",
        "",
        *(f"- {line}" for line in NOT_MEASURED),
        *(f"- `{name}`: {reason}." for name, reason in part.skipped.items()),
        END,
    ]
    return "\n".join(lines)


def _code(rows: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """The rows with their names as code."""
    return [(f"`{name}`", *figures) for name, *figures in rows]


def _row(name: str, ratio: Ratio, limit: Limit | None) -> tuple[str, ...]:
    figures = (ratio.value, ratio.low, ratio.high)
    kept = "" if limit is None else "yes" if limit.keeps(ratio.value) else "no"
    return name, *(f"{each:.4g}" for each in figures), str(ratio.rounds), _told(limit), kept


def _promise(part: Part, name: str, limit: Limit) -> str:
    found = part.absolute.get(name)
    if found is None:
        return f"`{name}` was not measured; its target is {limit}."
    kept = "kept" if limit.keeps(found.value) else "not kept"
    return f"`{name}` is {found.value:.3g}; its target of {limit} is {kept}."


def _told(limit: Limit | None) -> str:
    return "" if limit is None else str(limit)


def _limit(limit: Limit) -> dict[str, float]:
    pairs = {"at_most": limit.at_most, "at_least": limit.at_least}
    return {name: value for name, value in pairs.items() if value is not None}


def _rounded(ratio: Ratio | None) -> float | None:
    return None if ratio is None else significant(ratio.value)


def _kept(part: Part, name: str) -> bool | None:
    found = part.ratios.get(name) or part.absolute.get(name)
    return None if found is None else all_targets()[name].keeps(found.value)
