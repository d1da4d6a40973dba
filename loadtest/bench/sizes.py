"""How much of everything a run does: enough for a look, or enough for the record."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Counts are of requests, per round and side."""

    rounds: int
    hop_requests: int
    open_seconds: float
    replicas: int
    end_to_end_sides: int
    end_to_end_rounds: int
    end_to_end_seconds: float
    streams: int
    stream_rounds: int
    proxy_rounds: int
    proxy_requests: int
    litellm_requests: int
    installs: bool
    starts_together: bool


QUICK = Sizes(
    rounds=3,
    hop_requests=1_280,
    open_seconds=2.0,
    replicas=1,
    end_to_end_sides=2,
    end_to_end_rounds=2,
    end_to_end_seconds=1.5,
    streams=24,
    stream_rounds=2,
    proxy_rounds=2,
    proxy_requests=1_000,
    litellm_requests=48,
    installs=False,
    starts_together=True,
)
FULL = Sizes(
    rounds=9,
    hop_requests=10_000,
    open_seconds=20.0,
    replicas=2,
    end_to_end_sides=3,
    end_to_end_rounds=9,
    end_to_end_seconds=10.0,
    streams=320,
    stream_rounds=7,
    proxy_rounds=5,
    proxy_requests=20_000,
    litellm_requests=1_000,
    installs=True,
    starts_together=False,
)
