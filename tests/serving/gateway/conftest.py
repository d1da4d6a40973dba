"""A gateway in front of two models, as it is rendered, and another one that runs."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from serving.gateway.routes import Caller, Endpoint, Gateway, Limits, ModelRoute, Version
from tests.serving.gateway.backend import Backend, backends
from tests.serving.gateway.envoy_process import Envoy, running, until
from tests.serving.gateway.models import LIMITS, edge_gateway


@pytest.fixture
def limits() -> Limits:
    return LIMITS


@pytest.fixture
def gateway() -> Gateway:
    first, second = (
        Endpoint("127.0.0.1", 12_001, 12_011),
        Endpoint("127.0.0.1", 12_002, 12_012),
    )
    small = replace(LIMITS, max_request_bytes=70_000, callers=(Caller("ads", 500),), rate_rps=2500)
    return Gateway(
        port=12_100,
        inner_port=12_102,
        admin_port=12_101,
        servers=(first, second),
        hops=(Endpoint("127.0.0.1", 12_201), Endpoint("127.0.0.1", 12_202)),
        models=(
            ModelRoute("filetype", LIMITS, (Version(1, "sha256:" + "a" * 64, (first, second)),)),
            ModelRoute("ranker", small, (Version(12, "sha256:" + "b" * 64, (second,)),)),
        ),
    )


@pytest.fixture(scope="package")
def servers() -> Iterator[list[Backend]]:
    """A hop and a model server."""
    with backends(2) as found:
        yield found


@pytest.fixture(scope="package")
def envoy(servers: list[Backend], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Envoy]:
    """The real Envoy in front of them."""
    hop, triton = (server.endpoint for server in servers)
    folder = tmp_path_factory.mktemp("an envoy's files: 100% #1")
    with running(edge_gateway(hop, triton), folder) as found:
        until(lambda: found.send("GET", "/v2").status == 200)
        until(lambda: found.send("GET", "/v2/models/ranker").status == 200)
        yield found


@pytest.fixture
def hop(servers: list[Backend]) -> Backend:
    servers[0].asked.clear()
    return servers[0]


@pytest.fixture
def triton(servers: list[Backend]) -> Backend:
    servers[1].asked.clear()
    return servers[1]
