"""The plan as one HTML file that needs nothing else: sums, tables and pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape

from serving.capacity.floor_plan import FloorPlan
from serving.capacity.plan import ModelPlan, Plan
from serving.capacity.svg import lines, stacked
from serving.hardware.gpus import GIB
from serving.slo import LatencySlo

STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:1rem 0}td,th{border:1px solid #ccc;padding:.2rem .6rem;"
    "text-align:left;vertical-align:top}.no{color:#a02020}.maybe{color:#8a5a00}"
    "@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}svg{background:#eee}}"
)
STEPS = 40


def render_page(plan: Plan) -> str:
    """The page; the same plan gives the same bytes."""
    title = f"Capacity plan: {escape(plan.environment)}"
    body = [
        f"<h1>{title}</h1>",
        f"<p><b>{plan.usd_per_hour:,.2f} USD an hour</b> at the peak, on demand in us-east-1. "
        f"Prices of {escape(plan.prices_of)}: {escape(plan.prices_from)}</p>",
    ]
    for model in plan.models:
        body += _model(model)
    for floor in plan.floors:
        body += _floor(floor)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _list(items: Sequence[str], kind: str = "") -> str:
    rows = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f'<ul class="{kind}">{rows}</ul>' if rows else ""


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _model(model: ModelPlan) -> Iterator[str]:
    yield f"<h2>{escape(model.spec.name)}: {model.replicas} replicas</h2>"
    yield _list(model.refusals, "no") + _list(model.warnings, "maybe") + _list(model.sums)
    if model.llm is not None:
        budget = model.llm.budget
        unused = budget.gpu.memory_bytes * (1 - budget.utilization)
        parts = [
            ("weights", budget.weights / GIB),
            ("reserve", budget.reserve / GIB),
            ("left to the system", unused / GIB),
            ("keys and values", max(0, budget.free) / GIB),
        ]
        yield stacked(parts, "GiB", f"memory of one {budget.gpu.name}")
    yield lines(_replicas_by_rate(model), "requests a second", "replicas", model.replicas)
    costs = _cost_by_slo(model)
    if costs:
        yield lines(costs, "promised p99 in ms (measured batch curve)", "USD an hour")
    yield _table(
        ("machine", "number", "USD an hour", "note"),
        [
            (
                candidate.instance.type,
                candidate.instances,
                "not public"
                if candidate.usd_per_hour is None
                else f"{candidate.usd_per_hour:,.4f}",
                candidate.note,
            )
            for candidate in model.choice.candidates
        ],
    )
    rejected = [(item.instance.type, item.reason) for item in model.choice.rejected]
    yield f"<details><summary>{len(rejected)} machines that will not do</summary>"
    yield _table(("machine", "why not"), rejected) + "</details>"
    yield _table(
        ("way to buy", "USD an hour", "for", "beware"),
        [
            (
                rung.name,
                "by the day" if rung.usd_per_hour is None else f"{rung.usd_per_hour:,.4f}",
                rung.fits,
                rung.beware,
            )
            for rung in model.ladder
        ],
    )
    if model.assumed:
        yield "<p>Taken for granted:</p>" + _list(model.assumed)


def _replicas_by_rate(model: ModelPlan) -> list[tuple[float, float]]:
    """Replicas, headroom included, from nothing to half as much again as the peak."""
    top = model.law.rate_rps * 1.5
    rates = [top * step / STEPS for step in range(1, STEPS + 1)]
    return [(rate, replace(model.law, rate_rps=rate).replicas) for rate in rates]


def _cost_by_slo(model: ModelPlan) -> list[tuple[float, float]]:
    """Dollars an hour by the promised p99, where a batch curve was measured."""
    from serving.capacity.batching import batched
    from serving.engines.kinds import TritonEngine

    spec, engine, curve = model.spec, model.spec.engine, model.known.curve
    if curve is None or model.chosen is None or not isinstance(engine, TritonEngine):
        return []
    price, slo = model.chosen.instance.usd_per_hour, spec.slo
    if price is None or not isinstance(slo, LatencySlo):
        return []
    queue = engine.dynamic_batching.max_queue_delay_microseconds if engine.dynamic_batching else 0
    needed = spec.traffic.peak_rps * spec.traffic.headroom_ratio
    each = max(1, model.chosen.instance.gpus)
    found = []
    for step in range(1, STEPS + 1):
        promised = slo.latency_p99_ms * 2 * step / STEPS
        served = batched(
            curve, engine.largest_batch, engine.instance_group.count, queue / 1000, promised
        )
        if served is not None:
            machines = -(-max(1, -(-needed // served.rps)) // each)
            found.append((promised, price * machines))
    return found


def _floor(floor: FloorPlan) -> Iterator[str]:
    yield f"<h2>Shared {escape(floor.gpu)} ({escape(floor.sharing)}): {len(floor.gpus)} GPUs</h2>"
    yield _table(
        ("GPU", "holds"), [(number, ", ".join(held)) for number, held in enumerate(floor.gpus)]
    )
    yield _list(floor.risks, "maybe")
