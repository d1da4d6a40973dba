"""What a model's requests may be, take and need, derived from its spec."""

import math

from serving.engines.kinds import TritonEngine, VllmEngine
from serving.gateway.routes import Caller, Kind, Limits
from serving.slo import LatencySlo
from serving.spec import ModelSpec
from serving.tensors import ITEM_BYTES

# JSON writes a number in up to this many bytes, separator included ("-1.2345678901234567e-308, ").
JSON_BYTES_PER_ELEMENT = 26
# Each axis may put brackets around every element.
JSON_BYTES_PER_AXIS = 2
JSON_OVERHEAD_BYTES = 64 * 1024
# Triton's own limit on an HTTP body, and so the most that is let through where sizes are open.
LARGEST_REQUEST_BYTES = 64 * 1024 * 1024

# A request may take this many times its p99 where the spec sets no limit, and one attempt this
# many: high enough that only a replica that is stuck is given up.
TIMEOUT_OVER_P99 = 20
TRY_OVER_P99 = 5
LEAST_TIMEOUT_SECONDS = 5.0
LEAST_TRY_SECONDS = 0.5
ATTEMPTS = 2
# For whoever answers token by token, and for containers, of which nothing is known.
OPEN_TIMEOUT_SECONDS = 60.0
IDLE_SECONDS = 300.0
# In flight over what replicas bear at once: a short queue before refusal.
QUEUE_RATIO = 1.5


def limits_of(spec: ModelSpec, replicas: int) -> Limits:
    """The limits of a model that runs on so many replicas."""
    per_replica = math.ceil(spec.traffic.concurrency_per_replica * QUEUE_RATIO)
    timeout = _timeout_seconds(spec)
    routing = spec.routing
    return Limits(
        kind=_kind(spec),
        max_request_bytes=max_request_bytes(spec),
        timeout_seconds=timeout,
        per_try_timeout_seconds=_per_try_timeout_seconds(spec, timeout),
        idle_timeout_seconds=(routing and routing.idle_timeout_seconds) or IDLE_SECONDS,
        max_in_flight=per_replica * replicas,
        # All that one replica held when it died.
        retries_in_flight=per_replica,
        rate_rps=math.ceil(spec.traffic.peak_rps * spec.traffic.headroom_ratio),
        hash_header=routing.hash_header if routing else None,
        callers=tuple(Caller(client.name, client.rate_limit_rps) for client in spec.clients),
    )


def _kind(spec: ModelSpec) -> Kind:
    engine = spec.engine
    streams = isinstance(engine, VllmEngine) or (
        isinstance(engine, TritonEngine) and engine.decoupled
    )
    return "stream" if streams else "tensors"


def _timeout_seconds(spec: ModelSpec) -> float:
    if spec.routing and spec.routing.timeout_ms:
        return spec.routing.timeout_ms / 1000
    if isinstance(spec.slo, LatencySlo):
        return max(LEAST_TIMEOUT_SECONDS, TIMEOUT_OVER_P99 * spec.slo.latency_p99_ms / 1000)
    return OPEN_TIMEOUT_SECONDS


def _per_try_timeout_seconds(spec: ModelSpec, timeout: float) -> float | None:
    """How long one attempt may take; None where a second one would do harm or has no time.

    Only stateless tensors in, tensors out may be computed twice.
    """
    engine = spec.engine
    if not isinstance(engine, TritonEngine) or engine.decoupled or engine.sequence_batching:
        return None
    if not isinstance(spec.slo, LatencySlo):
        return None
    attempt = max(LEAST_TRY_SECONDS, TRY_OVER_P99 * spec.slo.latency_p99_ms / 1000)
    return attempt if attempt * ATTEMPTS <= timeout else None


def max_request_bytes(spec: ModelSpec) -> int:
    """Largest body that a full batch of the spec's inputs needs, as JSON, in bytes.

    Where a request has no largest size (open dims, strings, no tensors at all) this is the model
    server's own limit.
    """
    if not isinstance(spec.engine, TritonEngine) or any(
        tensor.is_open or ITEM_BYTES[tensor.data_type] is None for tensor in spec.inputs
    ):
        return LARGEST_REQUEST_BYTES
    row_bytes = sum(
        math.prod(tensor.dims) * (JSON_BYTES_PER_ELEMENT + JSON_BYTES_PER_AXIS * len(tensor.dims))
        for tensor in spec.inputs
    )
    size = row_bytes * spec.engine.largest_batch + JSON_OVERHEAD_BYTES
    return min(size, LARGEST_REQUEST_BYTES)
