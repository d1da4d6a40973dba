"""The horizontal pod autoscaler's formula: a metric of the whole fleet, a target per replica.

Source: kubernetes, pkg/controller/podautoscaler: GetExternalPerPodMetricReplicas and horizontal.go.
KEDA hands it the sum of a Prometheus query as an AverageValue.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

SYNC_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Rules:
    """What the autoscaler is told, with the HPA's own defaults."""

    target: float
    """Of the metric, for each replica."""
    min_replicas: int
    max_replicas: int
    tolerance: float = 0.1
    scale_down_window_seconds: float = 300.0
    scale_up_ratio: float = 1.0
    """Share of the replicas that one sync may add."""
    scale_up_pods: int = 4
    """Replicas that one sync may add in any case."""


class Autoscaler:
    """One HPA."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._wanted: deque[tuple[float, int]] = deque()

    def recommend(self, metric: float, replicas: int) -> int:
        """Replicas by the formula alone: metric over target, unless that is near what there is.

        45 in flight at 10 a replica are 5; 33 on 3 are near enough; the unknown changes nothing:

        >>> hpa = Autoscaler(Rules(target=10, min_replicas=1, max_replicas=20))
        >>> hpa.recommend(45, 3), hpa.recommend(33, 3), hpa.recommend(float("nan"), 3)
        (5, 3, 3)
        """
        if not math.isfinite(metric) or metric < 0:
            return replicas
        target, tolerance = self.rules.target, self.rules.tolerance
        if replicas and 1 - tolerance <= metric / (target * replicas) <= 1 + tolerance:
            return replicas
        return math.ceil(metric / target)

    def decide(self, now: float, metric: float, replicas: int) -> int:
        """Replicas that there shall be from now on."""
        rules = self.rules
        if not self._wanted:
            # A new HPA starts its window with what there is.
            self._wanted.append((now, replicas))
        wanted = self.recommend(metric, replicas)
        self._wanted.append((now, wanted))
        while self._wanted[0][0] <= now - rules.scale_down_window_seconds:
            self._wanted.popleft()
        if wanted < replicas:
            # Down only as far as the most that was asked for within the window.
            wanted = min(replicas, max(value for _, value in self._wanted))
        elif wanted > replicas:
            most = max(
                math.ceil(replicas * (1 + rules.scale_up_ratio)), replicas + rules.scale_up_pods
            )
            wanted = min(wanted, most)
        return min(max(wanted, rules.min_replicas), rules.max_replicas)
