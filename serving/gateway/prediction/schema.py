"""What the hop knows of a model version: the tensors it takes, and what to do with its answers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorSchema:
    """One tensor: `datatype` in the protocol's word (FP32), `dims` without the batch axis."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ModelSchema:
    """The tensors of a version; a `max_batch_size` of 0 means that there is no batch axis."""

    inputs: tuple[TensorSchema, ...]
    outputs: tuple[TensorSchema, ...]
    max_batch_size: int
    stateful: bool = False


@dataclass(frozen=True, slots=True)
class CacheRule:
    """How long an answer stays good, and whether a client is served its own answers alone."""

    ttl_seconds: float
    per_client: bool


@dataclass(frozen=True, slots=True)
class LogRule:
    """The share of requests whose tensors are logged, and which of them are left out."""

    sample_ratio: float
    redact: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Served:
    """A model version that requests may be for.

    The value of `hash_header`, where there is one, goes on to the gateway, which chooses by it.
    """

    model: str
    version: int
    digest: str
    schema: ModelSchema
    timeout_seconds: float
    latency_p99_ms: float | None = None
    cache: CacheRule | None = None
    log: LogRule | None = None
    hash_header: str | None = None
