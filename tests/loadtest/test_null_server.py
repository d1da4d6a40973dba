"""What computes nothing still answers well, or a calibration would measure refusals."""

import asyncio
import random
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from loadtest.null_server import NullServer, _message, serve_grpc
from loadtest.payloads.triton import TensorBodies
from loadtest.sse import Tokens
from serving.local.ports import choose_ports
from tests.loadtest.runs import job_of


class Asked:
    """A POST, and what was answered to it."""

    method = "POST"

    async def __call__(self) -> bytes:
        return b""

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.answer = status, {k.encode(): v.encode() for k, v in headers}, body


def answered(server: NullServer) -> Any:
    asked = Asked()
    asyncio.run(server.__rsgi__(asked, asked))
    return asked.answer


@pytest.mark.parametrize("model", ["filetype", "ranker"])
@pytest.mark.parametrize("workload", ["steady", "json", "cached"])
def test_tensors_are_good_by_the_users_own_check(model: str, workload: str) -> None:
    job = job_of(model, workload, seconds=5.0)
    assert TensorBodies(job).fault(*answered(NullServer(job))) is None


@pytest.mark.parametrize("workload", ["chat", "completions"])
def test_streams_are_whole_and_as_long_as_asked_for(workload: str) -> None:
    job = job_of(workload=workload, seconds=5.0)
    status, _, body = answered(NullServer(job))
    tokens = Tokens()
    tokens.feed(1, body)
    assert (status, tokens.fault()) == (200, None)
    assert tokens.tokens == getattr(job.workload.request, "output_tokens", None)


@pytest.mark.parametrize("model", ["filetype", "ranker"])
def test_messages_over_grpc_are_good_too(model: str) -> None:
    job = job_of(model, "grpc", seconds=5.0)
    answer = service_pb2.ModelInferResponse.FromString(_message(job))
    pairs = zip(answer.outputs, answer.raw_output_contents, strict=True)
    outputs = [(one.name, one.shape, len(raw)) for one, raw in pairs]
    assert TensorBodies(job).fault_of(outputs) is None


def test_a_call_over_grpc_is_answered() -> None:
    import grpc.aio
    from tritonclient.grpc import service_pb2_grpc

    port = choose_ports(("null",), {}, random.Random())["null"]

    async def call() -> Any:
        serving = asyncio.create_task(serve_grpc(job_of("ranker", "grpc", seconds=5.0), port))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            request = service_pb2.ModelInferRequest(model_name="ranker")
            answer = await stub.ModelInfer(request, timeout=20, wait_for_ready=True)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        return answer

    assert [output.name for output in asyncio.run(call()).outputs] == ["score"]


def test_a_service_of_known_speed_waits_that_long_on_average() -> None:
    server = NullServer(job_of(seconds=5.0), mean_ms=20.0)
    assert server._waits is not None
    waits = [next(server._waits) for _ in range(5000)]
    assert sum(waits) / len(waits) == pytest.approx(0.020, rel=0.03)
