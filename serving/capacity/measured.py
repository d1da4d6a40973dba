"""What the registry's evidence says of a model that an environment serves.

The plan asks for it where there is a registry; where none can be reached, it goes without.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from serving.capacity.batching import BatchCurve, curve_of
from serving.errors import GalleyError

if TYPE_CHECKING:
    from serving.capacity.known import Known
    from serving.registry.evidence import Evidence
    from serving.registry.store import Store


@dataclass(frozen=True, slots=True)
class Maximum:
    """A rate at which a release was shown to keep its SLO, and how."""

    rate_rps: float
    replicas: int
    source: str

    @property
    def per_replica_rps(self) -> float:
        """The rate that each replica had."""
        return self.rate_rps / self.replicas


def with_evidence(environment: str, known: dict[str, Known]) -> dict[str, Known]:
    """The same, with what was measured in the environment of each model; files come first."""
    store = _store(environment)
    if store is None:
        return known
    found = {}
    for model, one in known.items():
        curve, maximum = _of(store, environment, model)
        found[model] = replace(one, curve=one.curve or curve, maximum=maximum)
    return found


def _store(environment: str) -> Store | None:
    from serving.environments import open_store

    try:
        return open_store(environment)
    except GalleyError:
        return None


def _of(store: Store, environment: str, model: str) -> tuple[BatchCurve | None, Maximum | None]:
    from serving.registry import evidence, releases

    try:
        found = releases.read(store, environment, model)
        stable = None if found is None else found[0].stable
        if stable is None:
            return None, None
        about = model, stable.version
        curve = evidence.newest(store, *about, "batch-curve", stable.digest)
        maximum = evidence.newest(store, *about, "maximum", stable.digest)
        return (
            None if curve is None else _curve(curve),
            None if maximum is None else _maximum(maximum),
        )
    except GalleyError:
        # A registry that is down, or evidence that cannot be read, must not hold up a plan.
        return None, None


def _curve(found: Evidence) -> BatchCurve:
    points = {int(size): float(ms) for size, ms in json.loads(found.said["curve"]).items()}
    return curve_of(points, f"evidence of {found.made}, version {found.version}")


def _maximum(found: Evidence) -> Maximum | None:
    said = json.loads(found.said["maximum"])
    if found.rate_rps is None or not said.get("replicas"):
        return None
    source = f"evidence of {found.made}, version {found.version}"
    return Maximum(found.rate_rps, int(said["replicas"]), source)
