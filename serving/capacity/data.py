"""A plan as plain data: for `--json`, for whoever renders from it, and to compare two plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from serving.capacity.choice import Candidate
from serving.capacity.floor_plan import FloorPlan
from serving.capacity.plan import ModelPlan, Plan

Data = dict[str, Any]


def plan_data(plan: Plan) -> Data:
    """Everything in the plan; units are in the names."""
    return {
        "environment": plan.environment,
        "prices": {"date": plan.prices_of, "source": plan.prices_from, "region": "us-east-1"},
        "usd_per_hour": round(plan.usd_per_hour, 4),
        "models": {model.spec.name: model_data(model) for model in plan.models},
        "floor_plans": [_floor(floor) for floor in plan.floors],
        "refusals": list(plan.refusals),
    }


def model_data(model: ModelPlan) -> Data:
    """One model's part."""
    scaling = model.scaling
    return {
        "sum": model.law.sum,
        "sums": list(model.sums),
        "in_flight": float(model.law.in_flight),
        "replicas": model.replicas,
        "concurrency_per_replica": model.law.per_replica,
        "machine": None if model.chosen is None else _candidate(model.chosen),
        "usd_per_month": _rounded(model.usd_per_month, 2),
        "usd_per_million_predictions": _rounded(model.usd_per_million_predictions, 4),
        "usd_per_million_tokens": _rounded(model.usd_per_million_tokens, 4),
        "autoscaling": {
            "target_in_flight": scaling.target_in_flight,
            "min_replicas": scaling.min_replicas,
            "max_replicas": scaling.max_replicas,
            "scale_up_window_seconds": scaling.scale_up_window_seconds,
            "scale_down_window_seconds": scaling.scale_down_window_seconds,
            "cold_start_seconds": round(scaling.cold_start.seconds, 1),
            "warm_floor": scaling.warm_floor,
        },
        "rollout": asdict(model.rollout),
        "batching": None if model.served is None else asdict(model.served),
        "queue_delay": None if model.dial is None else asdict(model.dial),
        "memory": _memory(model),
        "ladder": [asdict(rung) for rung in model.ladder],
        "candidates": [_candidate(candidate) for candidate in model.choice.candidates],
        "rejected": {item.instance.type: item.reason for item in model.choice.rejected},
        "assumed": list(model.assumed),
        "warnings": list(model.warnings),
        "refusals": list(model.refusals),
    }


def _memory(model: ModelPlan) -> Data | None:
    if model.llm is None:
        return None
    budget = model.llm.budget
    return {
        "gpu": budget.gpu.name,
        "gpu_bytes": budget.gpu.memory_bytes,
        "weights_bytes": budget.weights,
        "reserve_bytes": budget.reserve,
        "kv_cache_bytes": max(0, budget.free),
        "kv_bytes_per_token": budget.cache.token_bytes,
        "kv_cache_tokens": budget.tokens,
        "limits": dict(model.llm.limits),
    }


def _candidate(candidate: Candidate) -> Data:
    return {
        "type": candidate.instance.type,
        "gpu": candidate.instance.gpu.name if candidate.instance.gpu else None,
        "instances": candidate.instances,
        "replicas": candidate.replicas,
        "usd_per_hour": _rounded(candidate.usd_per_hour, 4),
        "note": candidate.note,
    }


def _floor(floor: FloorPlan) -> Data:
    packed = floor.parts or floor.shared
    return {
        "gpu": floor.gpu,
        "sharing": floor.sharing,
        "models": list(floor.models),
        "gpus": [list(held) for held in floor.gpus],
        "fewest_gpus": packed.bound if packed else 0,
        "usd_per_hour": _rounded(floor.usd_per_hour, 4),
        "risks": list(floor.risks),
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Paths at which two plans differ, with both values; absent ones are None.

    >>> list(differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": 4}))
    [('a.c', 2, 3), ('d', None, 4)]
    """
    for key in [*old, *(key for key in new if key not in old)]:
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            for path, one, other in differences(before, after):
                yield f"{key}.{path}", one, other
        elif before != after:
            yield str(key), before, after
