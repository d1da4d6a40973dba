"""The real Envoy lets in whom it should, where it should, and nothing that is not listed."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.serving.gateway.backend import Backend
from tests.serving.gateway.envoy_process import Envoy, until
from tests.serving.gateway.models import DIGESTS, INFER

pytestmark = pytest.mark.live


# Paths


@pytest.mark.parametrize(
    ("path", "reached"),
    [
        ("/v2", "/v2"),
        ("/v2/models/ranker", "/v2/models/ranker/versions/12"),
        ("/v2/models/ranker?x=1", "/v2/models/ranker/versions/12?x=1"),
        ("/v2/models/ranker/ready", "/v2/models/ranker/versions/12/ready"),
        ("/v2/models/x/../ranker", "/v2/models/ranker/versions/12"),
        ("//v2/models//ranker", "/v2/models/ranker/versions/12"),
    ],
)
def test_what_is_listed_reaches_the_released_version(envoy: Envoy, path: str, reached: str) -> None:
    reply = envoy.send("GET", path)
    assert (reply.status, reply.json["path"]) == (200, reached)


def test_health_needs_no_key_and_carries_nothing_that_a_client_made_up(
    envoy: Envoy, triton: Backend
) -> None:
    forged = {"x-galley-client": "operator", "x-galley-version": "9", "x-galley-digest": "x"}
    for path in ("/v2/health/live", "/v2/health/ready"):
        reply = envoy.send("GET", path, headers=forged, key=None)
        assert (reply.status, reply.json["path"]) == (200, path)
        assert not set(forged) & set(triton.requests(path)[0])


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/metrics",
        "/v2/",
        "/V2/models/ranker",
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/models/stats",
        "/v2/repository/index",
        "/v2/repository/models/ranker/load",
        "/v2/repository/models/ranker/unload",
        "/v2/systemsharedmemory/status",
        "/v2/cudasharedmemory/region/x/register",
        "/v2/models/nobody",
        "/v2/models/nobody/infer",
        "/v2/models/ranker/",
        "/v2/models/ranker/stats",
        "/v2/models/ranker/config",
        "/v2/models/ranker/generate",
        "/v2/models/ranker/generate_stream",
        "/v2/models/tale/infer",
        "/v2/models/ranker/versions/11/infer",
        "/v2/models/ranker/versions/12/infer",
        "/v2/models/ranker;x/infer",
        "/v2\\repository\\index",
        "/v2/models/../repository/index",
        "/v2/models/ranker/%2e%2e/%2e%2e/repository/index",
        "//metrics",
    ],
)
def test_a_path_outside_the_list_is_not_found_with_any_method(
    envoy: Envoy, method: str, path: str
) -> None:
    reply = envoy.send(method, path, b"{}" if method in ("POST", "PUT") else None)
    assert (reply.status, reply.headers["content-type"]) == (404, "application/json")
    assert reply.json["error"].startswith("no such path or model at this gateway; models: ")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/models/ranker"),
        ("GET", "/v2/models/ranker/infer"),
        ("DELETE", "/v2"),
        ("TRACE", "/v2/models/ranker"),
        ("POST", "/v2/health/live"),
    ],
)
def test_a_listed_path_is_found_with_its_own_method_alone(
    envoy: Envoy, method: str, path: str
) -> None:
    assert envoy.send(method, path, b"" if method == "POST" else None).status == 404


@pytest.mark.parametrize(
    "path", ["/v2/models%2franker", "/v2/models/ranker%5cinfer", "/v2/models/ranker%00"]
)
def test_an_encoded_slash_is_refused_and_never_decoded(envoy: Envoy, path: str) -> None:
    reply = envoy.send("GET", path)
    assert (reply.status, reply.headers["content-type"]) == (400, "application/json")
    assert "path_normalization_failed" in reply.json["error"]


# Keys


@pytest.mark.parametrize(
    "key", [None, "", "nonesuch", "key-of-adsx", "KEY-OF-ADS", "k" * 8000], ids=lambda k: str(k)[:9]
)
def test_without_a_valid_key_nothing_is_told(
    envoy: Envoy, triton: Backend, key: str | None
) -> None:
    for path in ("/v2/models/ranker", "/v2", "/nonesuch"):
        reply = envoy.send("GET", path, key=key)
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        assert "authorization" in reply.json["error"]
    assert triton.asked == []


@pytest.mark.parametrize("name", ["authorization", "x-api-key"])
def test_a_key_may_come_under_either_name_and_goes_no_further(
    envoy: Envoy, hop: Backend, name: str
) -> None:
    headers = {name: "key-of-ads", "x-galley-client": "operator", "X-GALLEY-CLIENT": "feed"}
    assert (
        envoy.send("POST", "/v2/models/ranker/infer", b"x", headers=headers, key=None).status == 200
    )
    [seen] = hop.requests("/v2/models/ranker/infer")
    assert seen["x-galley-client"] == "ads"
    assert not {"authorization", "x-api-key"} & set(seen)


def test_two_keys_in_one_request_are_none(envoy: Envoy) -> None:
    connection = envoy.connect()
    connection.putrequest("GET", "/v2")
    for key in ("key-of-ads", "key-of-uploads"):
        connection.putheader("authorization", f"Bearer {key}")
    connection.endheaders()
    assert connection.getresponse().status == 401
    connection.close()


def test_a_client_is_let_to_its_own_models_and_the_operator_to_all(envoy: Envoy) -> None:
    for key, model, status in (
        ("key-of-ads", "ranker", 200),
        ("key-of-ads", "filetype", 403),
        ("second-key-of-uploads", "filetype", 200),
        ("key-of-uploads", "ranker", 403),
        ("key-of-operator", "ranker", 200),
        ("key-of-operator", "filetype", 200),
    ):
        reply = envoy.send("GET", f"/v2/models/{model}", key=key)
        assert reply.status == status, (key, model)
    assert envoy.send("GET", "/v2/models/filetype", key="key-of-ads").json == {
        "error": "this key may not call the model"
    }


# Versions


def test_the_version_and_digest_are_the_gateways_whatever_a_client_sends(
    envoy: Envoy, hop: Backend
) -> None:
    forged = {"x-galley-version": "1", "X-Galley-Digest": "sha256:0", "x-galley-shadow": "3"}
    envoy.send("POST", "/v2/models/ranker/infer", b"x", headers=forged, key="key-of-ads")
    [seen] = hop.requests("/v2/models/ranker/infer")
    assert (seen["x-galley-version"], seen["x-galley-digest"]) == ("12", DIGESTS[12])


def test_requests_are_split_by_weight_and_each_carries_the_digest_of_its_version(
    envoy: Envoy, hop: Backend
) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: envoy.send("POST", "/v2/models/split/infer", b"x"), range(400)))
    seen = [
        (headers["x-galley-version"], headers["x-galley-digest"])
        for headers in hop.requests("/v2/models/split/infer")
    ]
    assert set(seen) == {("1", DIGESTS[1]), ("2", DIGESTS[2])}
    # 40 are expected; that 5 to 95 come is all but certain.
    assert 5 <= seen.count(("2", DIGESTS[2])) <= 95


@pytest.mark.parametrize(
    ("sent", "body", "status"),
    [
        ({"x-envoy-retry-on": "5xx", "x-envoy-max-retries": "3"}, b"500:{}", 500),
        ({"x-envoy-upstream-rq-timeout-ms": "100"}, b"sleep:0.5", 200),
        ({"x-envoy-upstream-rq-per-try-timeout-ms": "100"}, b"sleep:0.5", 200),
        ({"x-envoy-upstream-alt-stat-name": "x", "x-envoy-original-path": "/v2"}, b"x", 200),
    ],
)
def test_no_header_of_a_client_changes_how_its_request_travels(
    envoy: Envoy, hop: Backend, sent: dict[str, str], body: bytes, status: int
) -> None:
    assert envoy.send("POST", INFER, body, headers=sent).status == status
    [seen] = hop.requests(INFER)
    assert not set(sent) & set(seen)


def test_a_request_is_told_by_an_id_of_the_gateways_own(envoy: Envoy, hop: Backend) -> None:
    reply = envoy.send("POST", INFER, b"x", headers={"x-request-id": "a\tb" * 1000})
    [seen] = hop.requests(INFER)
    assert reply.headers["x-request-id"] == seen["x-request-id"]
    assert len(seen["x-request-id"]) == 36
    assert "x-request-id" in envoy.send("GET", "/v2", key=None).headers


def test_streams_are_split_by_weight_and_each_goes_to_the_path_of_its_version(
    envoy: Envoy, triton: Backend
) -> None:
    path = "/v2/models/tales/generate_stream"
    with ThreadPoolExecutor(4) as pool:
        replies = pool.map(lambda _: envoy.send("POST", path, b"x", key="key-of-ads"), range(200))
    found = [(reply.headers["x-galley-version"], reply.json["path"]) for reply in replies]
    assert set(found) == {
        (str(number), f"/v2/models/tales/versions/{number}/generate_stream") for number in (6, 8)
    }
    # 60 are expected; that 20 to 110 come is all but certain.
    assert 20 <= len(triton.requests("/v2/models/tales/versions/8/generate_stream")) <= 110


# What is counted


def test_an_slo_is_an_exact_edge_of_the_latency_histograms(envoy: Envoy) -> None:
    envoy.send("GET", "/v2/models/ranker")
    until(lambda: 'le="40"' in envoy.admin("/stats/prometheus", filter="upstream_rq_time"))
