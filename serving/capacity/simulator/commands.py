"""galley simulate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from serving.commands import Specs
from serving.console import Json, print_json, print_line, print_table

if TYPE_CHECKING:
    from serving.capacity.simulator.outlook import Outlook

SHAPES = ("constant", "day", "step")
SIGNALS = ("in-flight", "waiting")


def simulate(
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    shape: Annotated[
        str, typer.Option("--shape", help="Traffic up to peak_rps: constant, day or step.")
    ] = "day",
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Traffic from a file of lines: seconds,rps.")
    ] = None,
    hours: Annotated[
        float, typer.Option("--hours", min=0.1, max=24 * 31, help="How long, with --shape.")
    ] = 24.0,
    signal: Annotated[
        str, typer.Option("--signal", help="What the autoscaler sees: in-flight or waiting.")
    ] = "in-flight",
    cold_start_seconds: Annotated[
        float | None, typer.Option("--cold-start-seconds", min=0, help="Measured; else estimated.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the arrivals.")] = 0,
    specs: Specs = None,
    json: Json = False,
) -> None:
    """Run a model's fleet through a day of traffic, and say how late and how dear it is."""
    from dataclasses import asdict

    from serving.capacity.simulator.load import read_trace, shaped
    from serving.capacity.simulator.outlook import outlook
    from serving.errors import InputError
    from serving.paths import specs_folder
    from serving.publish import spec_of

    if shape not in SHAPES:
        raise InputError(f"shape={shape} is not one of {', '.join(SHAPES)}; use one of these")
    if signal not in SIGNALS:
        raise InputError(f"signal={signal} is not one of {', '.join(SIGNALS)}; use one of these")
    spec = spec_of(model, specs or specs_folder())
    load = read_trace(trace) if trace else shaped(shape, spec.traffic.peak_rps, hours)  # type: ignore[arg-type]
    found = outlook(spec, load, signal, cold_start_seconds, seed)  # type: ignore[arg-type]
    if json:
        print_json(asdict(found))
    else:
        _show(found)
    if not found.holds:
        raise typer.Exit(1)


def _show(found: Outlook) -> None:
    outcome = found.outcome
    print_table(
        ("requests", "p50 ms", "p99 ms", "late", "allowed", "replica hours", "most", "USD"),
        [
            (
                outcome.requests,
                f"{outcome.p50_ms:,.1f}",
                f"{outcome.p99_ms:,.1f}",
                f"{outcome.bad_ratio:.4%}",
                f"{found.allowed_ratio:.4%}",
                f"{outcome.replica_hours:,.1f}",
                outcome.most_replicas,
                "-" if found.usd is None else f"{found.usd:,.2f}",
            )
        ],
    )
    print_line(found.told)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(simulate)
