"""What the gateway does, as one model that knows nothing of Envoy."""

from dataclasses import dataclass, replace

from serving.spec import ModelSpec

# JSON writes a number in up to this many bytes, separator included ("-1.2345678901234567e-308, ").
JSON_BYTES_PER_ELEMENT = 25
JSON_OVERHEAD_BYTES = 64 * 1024
# Triton's own limit on an HTTP body, and so the most that is let through for open dims.
LARGEST_REQUEST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Endpoint:
    """One model server."""

    address: str
    port: int


@dataclass(frozen=True)
class ModelRoute:
    """How requests for one model travel, and which version answers them."""

    model: str
    version: int
    digest: str
    max_request_bytes: int
    timeout_seconds: float
    endpoints: tuple[Endpoint, ...]

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

    Open dims (-1) have no largest tensor; they get the model server's own limit.
    """
    elements = 0
    for tensor in spec.inputs:
        count = 1
        for dim in tensor.dims:
            if dim < 0:
                return LARGEST_REQUEST_BYTES
            count *= dim
        elements += count
    batch = max(1, getattr(spec.engine, "max_batch_size", 1))
    size = elements * batch * JSON_BYTES_PER_ELEMENT + JSON_OVERHEAD_BYTES
    return min(size, LARGEST_REQUEST_BYTES)
