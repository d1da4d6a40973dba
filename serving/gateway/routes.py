"""What the gateway does, as one model that knows nothing of Envoy."""

from dataclasses import dataclass, replace
from typing import Literal

# The operator's own key: every model, no rate limit.
OPERATOR = "operator"

Kind = Literal["tensors", "stream"]


@dataclass(frozen=True)
class Endpoint:
    """One model server. A draining one finishes what it has and is sent nothing new."""

    address: str
    port: int
    grpc_port: int | None = None
    draining: bool = False


@dataclass(frozen=True)
class Caller:
    """A client of a model, and how many requests a second it may send."""

    name: str
    rate_rps: int


@dataclass(frozen=True)
class Limits:
    """What a model's requests may be, take and need.

    `kind` says whether one request has one answer of tensors, or a stream of them. Timeouts are
    in seconds: of a whole request (streams have none), of one attempt (None: as long as the
    request), and of silence in a stream. `max_in_flight` is what all replicas together may hold
    before more is refused, `retries_in_flight` how many of those may be second attempts. Requests
    with equal values of `hash_header` go to the same replica, as long as it is healthy.
    """

    kind: Kind
    max_request_bytes: int
    timeout_seconds: float
    per_try_timeout_seconds: float | None
    idle_timeout_seconds: float
    max_in_flight: int
    retries_in_flight: int
    rate_rps: int
    callers: tuple[Caller, ...]
    hash_header: str | None = None


@dataclass(frozen=True)
class Version:
    """A version that answers, and its share of the requests in percent."""

    number: int
    digest: str
    endpoints: tuple[Endpoint, ...]
    weight: int = 100


@dataclass(frozen=True)
class Mirror:
    """A version that gets copies of requests, and whose answers nobody sees.

    Larger requests than `max_request_bytes` are not copied: the gateway takes in all of a copy,
    and holds it for as long as the mirror does not read it.
    """

    number: int
    digest: str
    endpoints: tuple[Endpoint, ...]
    percent: float
    max_in_flight: int = 8
    max_request_bytes: int = 1024 * 1024


@dataclass(frozen=True)
class ModelRoute:
    """How requests for one model travel, and which versions answer them."""

    model: str
    limits: Limits
    versions: tuple[Version, ...]
    mirror: Mirror | None = None

    @property
    def main(self) -> Version:
        """The version that answers most requests."""
        return max(self.versions, key=lambda version: version.weight)

    @property
    def replicas(self) -> int:
        """How many endpoints are sent requests."""
        return sum(not at.draining for version in self.versions for at in version.endpoints)


@dataclass(frozen=True)
class Gateway:
    """Everything that can be reached from outside; whatever is not in here answers 404.

    Clients come in at `port`; `inner_port` is where the prediction hops send what they have
    checked, and nobody else.
    """

    port: int
    inner_port: int
    admin_port: int
    servers: tuple[Endpoint, ...]
    hops: tuple[Endpoint, ...]
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
