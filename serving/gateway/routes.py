"""What the gateway does, as one model that knows nothing of Envoy."""

import math
from dataclasses import dataclass, replace

from serving.engines.kinds import TritonEngine
from serving.spec import ModelSpec
from serving.tensors import ITEM_BYTES

# JSON writes a number in up to this many bytes, separator included ("-1.2345678901234567e-308, ").
JSON_BYTES_PER_ELEMENT = 26
# Each axis may put brackets around every element.
JSON_BYTES_PER_AXIS = 2
JSON_OVERHEAD_BYTES = 64 * 1024
# Triton's own limit on an HTTP body, and so the most that is let through where sizes are open.
LARGEST_REQUEST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Endpoint:
    """One model server. A draining one finishes what it has and is sent nothing new."""

    address: str
    port: int
    draining: bool = False


@dataclass(frozen=True)
class ModelRoute:
    """How requests for one model travel, and which version answers them."""

    model: str
    version: int
    digest: str
    max_request_bytes: int
    timeout_seconds: float
    endpoints: tuple[Endpoint, ...]

    @property
    def replicas(self) -> int:
        """How many endpoints are sent requests."""
        return sum(not at.draining for at in self.endpoints)

    def same_version(self, other: "ModelRoute") -> bool:
        """Whether both routes lead to the same bytes."""
        return (self.model, self.version, self.digest) == (
            other.model,
            other.version,
            other.digest,
        )


@dataclass(frozen=True)
class Gateway:
    """Everything that can be reached from outside; whatever is not in here answers 404."""

    port: int
    admin_port: int
    servers: tuple[Endpoint, ...]
    models: tuple[ModelRoute, ...]

    def route(self, model: str) -> ModelRoute | None:
        """The route of a model, or None where it has none."""
        return next((route for route in self.models if route.model == model), None)

    def without(self, model: str) -> "Gateway":
        """The gateway without any route of this model."""
        rest = tuple(route for route in self.models if route.model != model)
        return replace(self, models=rest)

    def with_route(self, route: ModelRoute) -> "Gateway":
        """The gateway with this route in place of any other of its model."""
        models = (*self.without(route.model).models, route)
        return replace(self, models=tuple(sorted(models, key=lambda each: each.model)))


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
