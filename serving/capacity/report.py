"""A plan as people read it on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from serving.capacity.cost import per_month
from serving.capacity.exact import TIMES
from serving.capacity.floor_plan import FloorPlan
from serving.capacity.plan import ModelPlan, Plan
from serving.hardware.instances import REGION

CANDIDATES_SHOWN = 5
GPUS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows; the title comes first."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


def overview(plan: Plan) -> Table:
    """One row for each model."""
    return Table(
        "",
        ("model", "in flight", "replicas", "machines", "USD/h", "USD/month", "USD/million"),
        tuple(_row(model) for model in plan.models),
    )


def _row(model: ModelPlan) -> tuple[object, ...]:
    machine = "none will do"
    if model.chosen is not None:
        machine = f"{model.chosen.instances} {TIMES} {model.chosen.instance.type}"
        if model.spec.hardware.sharing != "none":
            machine = f"part of {model.replicas} {TIMES} {model.spec.hardware.gpu}"
    return (
        model.spec.name,
        f"{float(model.law.in_flight):g}",
        model.replicas,
        machine,
        money(model.usd_per_hour),
        money(model.usd_per_month, 0),
        money(model.usd_per_million_predictions, 3),
    )


def money(usd: float | None, digits: int = 2) -> str:
    """Dollars, or a dash where there is no price.

    >>> money(4112.53, 0), money(None)
    ('4,113', '-')
    """
    return "-" if usd is None else f"{usd:,.{digits}f}"


def details(model: ModelPlan) -> Iterator[str]:
    """The sums of one model and what follows from them, a line each."""
    yield f"{model.spec.name}"
    for line in model.sums:
        yield f"  {line}"
    scaling = model.scaling
    yield (
        f"  scale on {scaling.target_in_flight} in flight a replica, {scaling.min_replicas} to "
        f"{scaling.max_replicas} replicas; up at once, down after "
        f"{scaling.scale_down_window_seconds} s"
    )
    yield f"  cold start: {scaling.cold_start.sum}; warm floor {scaling.warm_floor}"
    yield f"  rollout: {model.rollout.sum}"
    if model.usd_per_million_tokens is not None:
        yield f"  {money(model.usd_per_million_tokens)} USD for a million tokens written"
    if model.dial is not None:
        yield from _dial(model)
    for line in model.assumed:
        yield f"  assumed: {line}"
    for line in model.warnings:
        yield f"  warning: {line.partition(': ')[2]}"
    for line in model.refusals:
        yield f"  REFUSED: {line.partition(': ')[2]}"


def _dial(model: ModelPlan) -> Iterator[str]:
    dial = model.dial
    assert dial is not None  # noqa: S101
    for setting in dial.settings:
        chosen = " <- use this" if setting == dial.recommended else ""
        yield (
            f"  max_queue_delay_microseconds {setting.delay_microseconds:>6,}: "
            f"{setting.fill:5.1f} a batch, p50 {setting.p50_ms:.1f} ms, "
            f"p99 {setting.p99_ms:.1f} ms, busy {setting.busy_ratio:.0%}{chosen}"
        )
    if dial.recommended is None:
        yield f"  no queue delay keeps the SLO at {dial.rate_rps:,.0f} rps a replica; add replicas"


def machines(model: ModelPlan, shown: int = CANDIDATES_SHOWN) -> Table:
    """The cheapest machines, then one reason for each kind of GPU that will not do."""
    rows: list[tuple[object, ...]] = [
        (
            candidate.instance.type,
            f"{candidate.instances} for {candidate.replicas} replicas",
            money(candidate.usd_per_hour),
            candidate.note or "fits",
        )
        for candidate in model.choice.candidates[:shown]
    ]
    more = len(model.choice.candidates) - shown
    if more > 0:
        rows.append((f"{more} more", "", "", "dearer, or without a public price; see --json"))
    seen = set()
    for item in model.choice.rejected:
        gpu = item.instance.gpu
        key = (gpu.name if gpu else item.instance.accelerator, item.reason)
        if key not in seen:
            seen.add(key)
            rows.append((item.instance.type, "", "", item.reason))
    return Table(
        f"{model.spec.name}: machines", ("machine", "how many", "USD/h", "why"), tuple(rows)
    )


def ladder(model: ModelPlan) -> Table:
    """The ways to buy the machines."""
    return Table(
        f"{model.spec.name}: ways to buy",
        ("way", "USD/h", "for", "beware"),
        tuple(
            (
                rung.name,
                "by the day" if rung.usd_per_hour is None else money(rung.usd_per_hour),
                rung.fits,
                rung.beware,
            )
            for rung in model.ladder
        ),
    )


def floor_lines(floor: FloorPlan) -> Iterator[str]:
    """A floor plan, a line for each GPU."""
    packed = floor.parts or floor.shared
    bound = packed.bound if packed else 0
    yield (
        f"floor plan: {len(floor.gpus)} {TIMES} {floor.gpu} ({floor.sharing}) for "
        f"{', '.join(floor.models)}; no plan has fewer than {bound}; "
        f"{money(floor.usd_per_hour)} USD/h"
    )
    for number, held in enumerate(floor.gpus[:GPUS_SHOWN]):
        yield f"  GPU {number}: {', '.join(held)}"
    if len(floor.gpus) > GPUS_SHOWN:
        yield f"  and {len(floor.gpus) - GPUS_SHOWN} more; see --json"
    for risk in floor.risks:
        yield f"  risk: {risk}"


def total(plan: Plan) -> str:
    """The last line."""
    return (
        f"{plan.environment}: {money(plan.usd_per_hour)} USD an hour, "
        f"{money(per_month(plan.usd_per_hour), 0)} a month at the peak all the time; on demand, "
        f"{REGION}, prices of {plan.prices_of}"
    )
