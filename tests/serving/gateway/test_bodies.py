"""A body is held up to its model's limit and refused above it."""

import pytest

from tests.serving.gateway.backend import Backend
from tests.serving.gateway.envoy_process import AUTHORIZED, Envoy, raw
from tests.serving.gateway.models import LIMIT_BYTES, STREAMED

pytestmark = pytest.mark.live


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("extra", [-1, 0])
def test_a_body_up_to_the_limit_reaches_the_hop_with_its_length(
    envoy: Envoy, hop: Backend, extra: int, chunked: bool
) -> None:
    size = LIMIT_BYTES + extra
    reply = envoy.send("POST", "/v2/models/ranker/infer", b"x" * size, chunked=chunked)
    assert (reply.status, reply.json["size"]) == (200, size)
    assert hop.requests("/v2/models/ranker/infer")[0]["content-length"] == str(size)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_one_byte_over_the_limit_is_refused_with_the_limit(
    envoy: Envoy, chunked: bool
) -> None:
    reply = envoy.send("POST", "/v2/models/ranker/infer", b"x" * (LIMIT_BYTES + 1), chunked=chunked)
    assert (reply.status, reply.headers["content-type"]) == (413, "application/json")
    assert str(LIMIT_BYTES) in reply.json["error"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_stream_is_asked_for_with_a_limit_as_well(
    envoy: Envoy, triton: Backend, chunked: bool
) -> None:
    path = "/v2/models/tale/generate_stream"
    for size, status in ((LIMIT_BYTES, 200), (LIMIT_BYTES + 1, 413)):
        reply = envoy.send("POST", path, b"x" * size, chunked=chunked, key="key-of-ads")
        assert reply.status == status
    assert str(LIMIT_BYTES) in reply.json["error"]
    assert len(triton.requests(STREAMED)) == 1


def test_a_large_body_to_a_path_outside_the_list_is_not_waited_for(envoy: Envoy) -> None:
    found = raw(
        envoy,
        b"POST /nonesuch HTTP/1.1\r\n" + AUTHORIZED + b"Content-Length: 1000000\r\n\r\n",
    )
    assert found.split()[1] == b"404"


def test_each_model_has_its_own_limit(envoy: Envoy) -> None:
    body = b"x" * (LIMIT_BYTES + 1)
    assert envoy.send("POST", "/v2/models/filetype/infer", body).json["size"] == len(body)
