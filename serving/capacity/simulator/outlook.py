"""A spec's fleet under a load, with the plan's numbers for the autoscaler, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

from serving.capacity.known import Known
from serving.capacity.plan import Settings, plan_model
from serving.capacity.simulator.autoscaler import Rules
from serving.capacity.simulator.fleet import Fleet, Outcome, Signal, simulate
from serving.capacity.simulator.load import Load
from serving.errors import InputError
from serving.slo import LatencySlo
from serving.spec import ModelSpec

WAITING_TARGET = 5.0
"""Waiting requests a replica, as published samples set it, where only those are looked at."""
LATE_RATIO = 0.01
"""Share that a p99 lets be late."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a simulation says of a spec."""

    model: str
    slo_ms: float
    allowed_ratio: float
    cold_start_seconds: float
    usd: float | None
    """On demand, at the price of one replica's machine."""
    holds: bool
    told: str
    outcome: Outcome


def outlook(
    spec: ModelSpec, load: Load, signal: Signal, cold_start_seconds: float | None, seed: int
) -> Outlook:
    """The fleet of a spec whose answers come at once; each takes service_time_ms on its slot.

    Raises:
        InputError: the spec promises tokens, which this does not simulate, or starts from nothing.
    """
    slo = spec.slo
    if not isinstance(slo, LatencySlo):
        raise InputError(
            f"{spec.name}: slo promises tokens, and only whole answers are simulated; measure it "
            "with a load test"
        )
    if spec.scaling.min_replicas == 0:
        raise InputError(
            f"{spec.name}: scaling.min_replicas=0 is not simulated; use 1, or see galley plan"
        )
    plan = plan_model(spec, Known(), Settings())
    start = plan.scaling.cold_start.seconds if cold_start_seconds is None else cold_start_seconds
    target = plan.scaling.target_in_flight if signal == "in-flight" else WAITING_TARGET
    rules = Rules(
        target,
        plan.scaling.min_replicas,
        spec.scaling.max_replicas,
        scale_down_window_seconds=plan.scaling.scale_down_window_seconds,
    )
    fleet = Fleet(
        spec.traffic.concurrency_per_replica, spec.traffic.service_time_ms, start, rules, signal
    )
    outcome = simulate(load, fleet, slo.latency_p99_ms, seed)
    price = plan.usd_per_hour
    usd = None if price is None else price / plan.replicas * outcome.replica_hours
    keeps = outcome.bad_ratio <= LATE_RATIO
    verdict = "holds" if keeps else "DOES NOT HOLD"
    told = (
        f"{spec.name}: the p99 of {slo.latency_p99_ms:g} ms {verdict}, "
        f"cold start {start:.0f} s; {outcome.most_replicas} replicas at most, "
        f"{outcome.longest_queue:,} waiting at worst, {outcome.turns} turns of the autoscaler"
    )
    return Outlook(spec.name, slo.latency_p99_ms, LATE_RATIO, start, usd, keeps, told, outcome)
