"""What is promised of a model: judged numbers, each set beside its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator, Discriminator, Field, Tag

from serving.strict import Strict, refuse


def _because(text: str) -> str:
    if not text.strip():
        raise refuse("gives no reason", "say who is hurt when the number is missed")
    return text


Because = Annotated[str, AfterValidator(_because)]
Positive = Annotated[float, Field(gt=0)]
Ratio = Annotated[float, Field(gt=0, lt=1)]


class LatencySlo(Strict):
    """What is promised of a model that answers each request at once."""

    latency_p99_ms: Positive = Field(description="99th percentile of latency in milliseconds")
    error_ratio: Ratio = Field(description="share of requests that may fail, 0 to 1")
    because: Because = Field(description="why these numbers: who is hurt when they are missed")


class TokenSlo(Strict):
    """What is promised of a model that answers token by token."""

    time_to_first_token_p99_ms: Positive = Field(
        description="99th percentile of the wait for the first token in milliseconds"
    )
    inter_token_latency_p99_ms: Positive = Field(
        description="99th percentile of the wait between tokens in milliseconds"
    )
    error_ratio: Ratio = Field(description="share of requests that may fail, 0 to 1")
    because: Because = Field(description="why these numbers: who is hurt when they are missed")


def _slo_kind(value: object) -> str:
    keys: Sequence[object] = (
        tuple(value)
        if isinstance(value, Mapping)
        else tuple(getattr(value, "model_fields_set", ()))
    )
    by_token = any("token" in str(key) for key in keys)
    return "token" if by_token else "latency"


Slo = Annotated[
    Annotated[LatencySlo, Tag("latency")] | Annotated[TokenSlo, Tag("token")],
    Discriminator(_slo_kind),
]
