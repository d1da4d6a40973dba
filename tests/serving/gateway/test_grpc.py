"""gRPC through the real Envoy: the name in a message decides, and nothing else gets through."""

import struct
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from dataclasses import replace
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from serving.gateway.routes import Caller, Endpoint, ModelRoute, Version
from tests.serving.gateway.backend import Backend, backends
from tests.serving.gateway.envoy_process import Envoy, gateway_of, running
from tests.serving.gateway.models import LIMITS

pytestmark = pytest.mark.live

SERVICE = "/inference.GRPCInferenceService/"
ADS = replace(LIMITS, callers=(Caller("ads", 500),), rate_rps=2500, max_request_bytes=100_000)


class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers with the model and version that it was asked for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[tuple[str, str]] = []
        self.lock = threading.Lock()

    def ModelInfer(self, request: Any, context: Any) -> Any:
        if request.id == "slow":
            time.sleep(0.5)
        with self.lock:
            self.asked.append((request.model_name, request.model_version))
        return pb.ModelInferResponse(
            model_name=request.model_name, model_version=request.model_version, id=self.name
        )

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        return pb.ModelMetadataResponse(name=request.name, versions=[request.version])

    def ModelReady(self, request: Any, context: Any) -> Any:
        return pb.ModelReadyResponse(ready=True)

    def RepositoryIndex(self, request: Any, context: Any) -> Any:
        return pb.RepositoryIndexResponse()

    def ServerLive(self, request: Any, context: Any) -> Any:
        return pb.ServerLiveResponse(live=True)


@pytest.fixture(scope="module")
def tritons() -> Iterator[list[tuple[Triton, int]]]:
    found, servers = [], []
    for name in ("one", "two"):
        options = [("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)]
        server = grpc.server(futures.ThreadPoolExecutor(4), options=options)
        triton = Triton(name)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(triton, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        found.append((triton, port))
    yield found
    for server in servers:
        server.stop(None).wait()


@pytest.fixture(scope="module")
def health() -> Iterator[list[Backend]]:
    with backends(2) as found:
        yield found


@pytest.fixture(scope="module")
def envoy(
    tritons: list[tuple[Triton, int]],
    health: list[Backend],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Envoy]:
    endpoints = tuple(
        Endpoint("127.0.0.1", server.server_port, port)
        for server, (_, port) in zip(health, tritons, strict=True)
    )
    models = (
        ModelRoute("filetype", LIMITS, (Version(1, "sha256:a", endpoints),)),
        ModelRoute(
            "limited",
            replace(ADS, callers=(Caller("ads", 2),)),
            (Version(1, "sha256:a", endpoints),),
        ),
        ModelRoute("busy", replace(ADS, max_in_flight=2), (Version(3, "sha256:c", endpoints),)),
        ModelRoute("ranker", ADS, (Version(12, "sha256:b", endpoints),)),
    )
    gateway = gateway_of(models, endpoints, [health[0].endpoint])
    with running(gateway, tmp_path_factory.mktemp("grpc")) as found:
        found.until_healthy("ranker-v12-grpc", 2)
        yield found


@pytest.fixture
def channel(envoy: Envoy, tritons: list[tuple[Triton, int]]) -> Iterator[grpc.Channel]:
    for triton, _ in tritons:
        triton.asked.clear()
    trusted = grpc.ssl_channel_credentials((envoy.folder / "ca.pem").read_bytes())
    options = [("grpc.max_send_message_length", -1)]
    with grpc.secure_channel(f"localhost:{envoy.gateway.port}", trusted, options) as found:
        yield found


def header(key: str | None = "key-of-ads", *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return ((("authorization", f"Bearer {key}"),) if key else ()) + more


def call(
    channel: grpc.Channel,
    message: Any,
    method: str = "ModelInfer",
    metadata: tuple[tuple[str, str], ...] = header(),
    **settings: Any,
) -> tuple[str, Any, dict[str, str]]:
    """Status, answer or words, and what came with it. `message` may be raw bytes."""
    raw = message if isinstance(message, bytes) else message.SerializeToString()
    try:
        answer, told = channel.unary_unary(SERVICE + method).with_call(
            raw, metadata=metadata, timeout=10, **settings
        )
    except grpc.RpcError as error:
        return error.code().name, error.details(), dict(error.initial_metadata() or ())
    return "OK", answer, dict(told.initial_metadata())


def infer(model: str = "ranker", **members: Any) -> Any:
    return pb.ModelInferRequest(model_name=model, **members)


def field(number: int, value: bytes) -> bytes:
    return bytes([number * 8 + 2, len(value)]) + value


def all_asked(tritons: list[tuple[Triton, int]]) -> set[tuple[str, str]]:
    return {each for triton, _ in tritons for each in triton.asked}


@pytest.mark.parametrize("version", ["", "7", "12"])
def test_the_version_is_the_gateways_whatever_a_client_names(
    channel: grpc.Channel, version: str
) -> None:
    status, answer, told = call(channel, infer(model_version=version))
    assert status == "OK"
    found = pb.ModelInferResponse.FromString(answer)
    assert (found.model_name, found.model_version) == ("ranker", "12")
    assert (told["x-galley-version"], told["x-galley-digest"]) == ("12", "sha256:b")


def test_metadata_and_readiness_are_told_of_the_same_version(channel: grpc.Channel) -> None:
    status, answer, _ = call(channel, pb.ModelMetadataRequest(name="ranker"), "ModelMetadata")
    assert status == "OK"
    assert list(pb.ModelMetadataResponse.FromString(answer).versions) == ["12"]
    assert call(channel, pb.ModelReadyRequest(name="ranker"), "ModelReady")[0] == "OK"


def test_health_needs_no_key(channel: grpc.Channel) -> None:
    assert call(channel, pb.ServerLiveRequest(), "ServerLive", header(None))[0] == "OK"


@pytest.mark.parametrize(
    ("model", "key", "status"),
    [
        ("ranker", None, "UNAUTHENTICATED"),
        ("ranker", "nonesuch", "UNAUTHENTICATED"),
        ("filetype", "key-of-ads", "PERMISSION_DENIED"),
        ("ranker", "key-of-uploads", "PERMISSION_DENIED"),
        ("nobody", "key-of-ads", "NOT_FOUND"),
        ("filetype", "key-of-uploads", "OK"),
        ("ranker", "key-of-operator", "OK"),
    ],
)
def test_a_key_opens_its_clients_models_alone(
    channel: grpc.Channel, tritons: list[tuple[Triton, int]], model: str, key: str, status: str
) -> None:
    assert call(channel, infer(model), metadata=header(key))[0] == status
    assert all_asked(tritons) <= ({(model, "12" if model == "ranker" else "1")})
    assert bool(all_asked(tritons)) is (status == "OK")


PLAIN = infer().SerializeToString()


@pytest.mark.parametrize(
    "message",
    [
        PLAIN + field(1, b"filetype"),
        field(1, b"filetype") + PLAIN,
        PLAIN + field(2, b"3") + field(2, b"4"),
        b"",
        b"\x0b" + PLAIN,
        PLAIN + b"\x8a\x80\x80\x80\x70" + bytes([8]) + b"filetype",
        PLAIN + b"\x8a\x80\x80\x80\x80\x80\x80\x80\x80\x00" + bytes([8]) + b"filetype",
        PLAIN + b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        PLAIN + b"\x2a\x7f",
        b"\x08\x01" + PLAIN,
        PLAIN + b"\x3d\x01",
        PLAIN + b"\x38\x01" * 10_001,
        field(1, b"../ranker"),
        field(1, b"x" * 100),
    ],
    ids=[
        *("twice", "twice, first", "version twice", "nothing", "group", "long tag", "longer tag"),
        *("length beyond 64 bits", "length beyond the end", "a number as name"),
        *("number beyond the end", "too many fields", "path", "unknown"),
    ],
)
def test_a_message_that_two_readers_could_read_differently_reaches_nobody(
    channel: grpc.Channel, tritons: list[tuple[Triton, int]], message: bytes
) -> None:
    assert call(channel, message)[0] in ("INVALID_ARGUMENT", "NOT_FOUND")
    assert all_asked(tritons) == set()


def framed(message: bytes, flag: int = 0, more: int = 0) -> bytes:
    """A message as it is sent, with a flag, and a length that may be wrong."""
    return struct.pack(">BI", flag, len(message) + more) + message


@pytest.mark.parametrize(
    "body",
    [
        *(framed(PLAIN, flag=1), framed(PLAIN, flag=2), framed(PLAIN, more=1)),
        *(framed(PLAIN, more=-1), framed(PLAIN) * 2, framed(PLAIN)[:-1], b"\0\0", b""),
    ],
    ids=[
        *("compressed", "odd flag", "long", "short", "twice", "cut", "no length", "nothing"),
    ],
)
def test_what_is_not_one_whole_message_reaches_nobody(
    envoy: Envoy, channel: grpc.Channel, tritons: list[tuple[Triton, int]], body: bytes
) -> None:
    headers = {"content-type": "application/grpc", "te": "trailers"}
    for made_up in ({}, {"x-galley-model": "ranker", "x-galley-version": "12"}):
        reply = envoy.send("POST", SERVICE + "ModelInfer", body, headers={**headers, **made_up})
        assert reply.headers["grpc-status"] == "3"  # INVALID_ARGUMENT
    assert all_asked(tritons) == set()


def test_a_request_that_is_not_grpc_is_none_also_under_a_models_name(
    envoy: Envoy, channel: grpc.Channel, tritons: list[tuple[Triton, int]]
) -> None:
    headers = {"x-galley-model": "ranker", "x-galley-version": "12"}
    reply = envoy.send("POST", SERVICE + "ModelInfer", framed(PLAIN), headers=headers)
    assert (reply.status, reply.headers["content-type"]) == (501, "application/json")
    assert all_asked(tritons) == set()


def test_the_name_may_come_behind_the_tensors(
    channel: grpc.Channel, tritons: list[tuple[Triton, int]]
) -> None:
    tensors = pb.ModelInferRequest(raw_input_contents=[b"\0" * 5000]).SerializeToString()
    assert call(channel, tensors + field(1, b"ranker"))[0] == "OK"
    assert all_asked(tritons) == {("ranker", "12")}


@pytest.mark.parametrize("made_up", ["ranker", "filetype", "nobody"])
def test_a_header_with_a_models_name_changes_nothing(
    channel: grpc.Channel, tritons: list[tuple[Triton, int]], made_up: str
) -> None:
    metadata = header(
        "key-of-ads",
        *(("x-galley-model", made_up), ("x-galley-version", "3"), ("x-galley-client", "operator")),
    )
    assert call(channel, infer(), metadata=metadata)[0] == "OK"
    assert call(channel, infer("filetype"), metadata=metadata)[0] == "PERMISSION_DENIED"
    assert all_asked(tritons) == {("ranker", "12")}


@pytest.mark.parametrize(
    "method", ["ModelConfig", "RepositoryIndex", "ModelStreamInfer", "RepositoryModelLoad"]
)
@pytest.mark.parametrize("made_up", [(), (("x-galley-model", "ranker"),)])
def test_no_other_method_is_offered_also_not_under_a_models_name(
    channel: grpc.Channel, method: str, made_up: tuple[tuple[str, str], ...]
) -> None:
    message = field(1, b"ranker")
    assert call(channel, message, method, header("key-of-ads", *made_up))[0] == "UNIMPLEMENTED"


def test_a_compressed_message_is_refused(channel: grpc.Channel) -> None:
    big = infer(raw_input_contents=[b"\0" * 10_000])
    status, words, _ = call(channel, big, compression=grpc.Compression.Gzip)
    assert (status, "compressed" in words) == ("UNIMPLEMENTED", True)


def test_a_message_over_the_models_limit_is_refused_with_the_limit(channel: grpc.Channel) -> None:
    assert call(channel, infer(raw_input_contents=[b"\0" * 90_000]))[0] == "OK"
    status, words, _ = call(channel, infer(raw_input_contents=[b"\0" * 110_000]))
    assert (status, "100000" in words) == ("RESOURCE_EXHAUSTED", True)


def test_a_client_over_its_rate_is_told_so_and_has_no_other_one_over_http(
    channel: grpc.Channel, envoy: Envoy
) -> None:
    found = [call(channel, infer("limited"))[0] for _ in range(12)]
    assert set(found) == {"OK", "RESOURCE_EXHAUSTED"}
    assert envoy.burst("/v2/models/limited", ["key-of-ads"], 2).count(429) >= 1


def test_more_in_flight_than_the_servers_bear_is_refused_as_busy_and_not_as_broken(
    channel: grpc.Channel,
) -> None:
    with futures.ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda _: call(channel, infer("busy", id="slow"))[0], range(12)))
    assert set(found) == {"OK", "RESOURCE_EXHAUSTED"}


def test_the_requests_of_one_connection_are_spread_over_all_servers(
    channel: grpc.Channel, tritons: list[tuple[Triton, int]]
) -> None:
    for _ in range(60):
        assert call(channel, infer())[0] == "OK"
    assert all(len(triton.asked) >= 10 for triton, _ in tritons)


def test_many_at_once_are_each_answered_for_their_own_model(
    channel: grpc.Channel, tritons: list[tuple[Triton, int]]
) -> None:
    def ask(number: int) -> bool:
        model, key = [("ranker", "key-of-ads"), ("filetype", "key-of-uploads")][number % 2]
        status, answer, _ = call(channel, infer(model, id=str(number)), metadata=header(key))
        return status == "RESOURCE_EXHAUSTED" or (
            pb.ModelInferResponse.FromString(answer).model_name == model
        )

    with futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(100)))
