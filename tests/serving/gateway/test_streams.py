"""A stream is bounded by its silence, is asked for once, and outlives every change."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from serving.gateway.routes import Version
from serving.local.home import write_atomically
from serving.local.tls import write_certificate
from tests.serving.gateway.backend import Backend
from tests.serving.gateway.envoy_process import KEYS, Envoy
from tests.serving.gateway.models import DIGESTS, STREAMED

pytestmark = pytest.mark.live


def test_a_request_that_takes_too_long_is_given_up_at_the_models_time(envoy: Envoy) -> None:
    reply = envoy.send("POST", "/v2/models/quick/infer", b"sleep:3")
    assert (reply.status, reply.headers["content-type"]) == (504, "application/json")


def stream(envoy: Envoy, body: str) -> Iterator[bytes]:
    connection = envoy.connect()
    headers = {"authorization": "Bearer key-of-ads"}
    try:
        connection.request("POST", "/v2/models/tale/generate_stream", body, headers)
        response = connection.getresponse()
        assert response.headers["x-galley-version"] == "12"
        while line := response.readline():
            yield line
    finally:
        response.close()
        connection.close()


def test_a_stream_is_longer_than_any_time_of_a_request_and_comes_bit_by_bit(envoy: Envoy) -> None:
    # 16 s: without a time of its own a route has 15.
    lines = stream(envoy, "events:160")
    arrived = [time.monotonic() for line in lines if line.startswith(b"data")]
    assert len(arrived) == 160
    assert arrived[-1] - arrived[0] > 15


def test_a_silent_stream_is_cut_at_its_idle_time(envoy: Envoy) -> None:
    start = time.monotonic()
    reply = envoy.send("POST", "/v2/models/tale/generate_stream", b"sleep:20", key="key-of-ads")
    assert reply.status == 504
    assert time.monotonic() - start < 15


def test_a_stream_that_falls_silent_midway_is_cut_as_well(envoy: Envoy) -> None:
    lines = list(stream(envoy, "silent:3"))  # which the server never ends
    assert sum(line.startswith(b"data") for line in lines) == 3


@pytest.mark.parametrize("body", ["500:{}", "die:", "broken:3"])
def test_a_stream_is_asked_for_once_whatever_comes_of_it(
    envoy: Envoy, triton: Backend, body: str
) -> None:
    list(stream(envoy, body))
    assert len(triton.requests(STREAMED)) == 1


def test_no_change_of_keys_routes_servers_or_certificate_cuts_a_stream(
    envoy: Envoy, servers: list[Backend]
) -> None:
    lines: list[bytes] = []
    reader = threading.Thread(target=lambda: lines.extend(stream(envoy, "events:60")))
    reader.start()
    before = envoy.gateway
    time.sleep(0.5)
    rest = {name: keys for name, keys in KEYS.items() if name != "ads"}
    model = next(each for each in before.models if each.model == "tale")
    # Fewer routes and clusters, a new version with half of the requests, and a server more.
    both = tuple(server.endpoint for server in servers)
    versions = (
        replace(model.main, endpoints=both, weight=50),
        Version(13, DIGESTS[13], both, weight=50),
    )
    after = before.without("filetype").with_route(replace(model, versions=versions))
    envoy.change(after, rest)
    assert envoy.send("GET", "/v2/models/tale", key="key-of-ads").status == 401
    certificate = (envoy.folder / "server.pem").read_text()
    write_certificate(envoy.folder)
    write_atomically(envoy.folder / "tls.json", (envoy.folder / "tls.json").read_text())
    envoy.change(before)
    assert (envoy.folder / "server.pem").read_text() != certificate
    assert envoy.send("GET", "/v2/models/filetype", key="key-of-uploads").status == 200
    reader.join()
    assert sum(line.startswith(b"data") for line in lines) == 60
