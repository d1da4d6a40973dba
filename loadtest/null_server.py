"""A server that computes nothing and answers well: what a generator is measured against.

    python -m loadtest.null_server JOB PORT [MEAN_MS]

With MEAN_MS each answer waits, log-normal around that mean and drawn from one seed, as a service of
known speed. Every inference gets the right outputs, all zeros; every chat or completion a stream of
as many tokens as the workload asks for, with nothing between them. What is then measured is the
generator.
"""

from __future__ import annotations

import asyncio
import math
import sys
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson

from loadtest.job import job_from
from serving.tensors import ITEM_BYTES

if TYPE_CHECKING:
    from loadtest.job import Job
    from serving.tensors import Tensor

HEADER_LENGTH: Final = "inference-header-content-length"
SPREAD: Final = 0.4
WAITS: Final = 10_007

Answer = tuple[list[tuple[str, str]], bytes]


class NullServer:
    """One fixed answer to every POST, and 200 to everything else.

    Args:
        job: the load test that it stands in for.
        mean_ms: mean of what each answer waits.
    """

    def __init__(self, job: Job, mean_ms: float = 0.0) -> None:
        self._waits = cycle(_waits(mean_ms)) if mean_ms else None
        request = job.workload.request
        if request.kind == "chat" or request.kind == "completions":
            self._headers, self._body = _events(request.kind, request.output_tokens)
        else:
            binary = not (request.kind == "triton_http" and request.framing == "json")
            self._headers, self._body = _tensors(job, request.batch_size, binary=binary)

    def __rsgi_init__(self, _: Any) -> None:
        """Nothing to prepare."""

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """Answer one request."""
        if scope.method == "POST":
            await protocol()
            if self._waits is not None:
                await asyncio.sleep(next(self._waits))
            protocol.response_bytes(200, self._headers, self._body)
        else:
            protocol.response_empty(200, [])


def _waits(mean_ms: float) -> list[float]:
    random = np.random.default_rng(1)
    drawn = random.lognormal(math.log(mean_ms / 1e3) - SPREAD**2 / 2, SPREAD, WAITS)
    found: list[float] = drawn.tolist()
    return found


def _tensors(job: Job, batch: int, *, binary: bool) -> Answer:
    outputs, raw = [], b""
    batch_axis = [batch] if getattr(job.spec.engine, "max_batch_size", 0) > 0 else []
    for tensor in job.spec.outputs:
        shape = [*batch_axis, *(max(size, 1) for size in tensor.dims)]
        count = 1
        for size in shape:
            count *= size
        said: dict[str, Any] = {
            "name": tensor.name,
            "datatype": _datatype(tensor),
            "shape": shape,
        }
        item = ITEM_BYTES[tensor.data_type]
        if binary:
            # Text has its length before it: four zeros are an empty one.
            zeros = bytes(count * (4 if item is None else item))
            said["parameters"] = {"binary_data_size": len(zeros)}
            raw += zeros
        else:
            said["data"] = [0 if item is not None else ""] * count
        outputs.append(said)
    head = orjson.dumps({"model_name": job.spec.name, "model_version": "1", "outputs": outputs})
    if not binary:
        return [("content-type", "application/json")], head
    return [
        ("content-type", "application/octet-stream"),
        (HEADER_LENGTH, str(len(head))),
    ], head + raw


def _datatype(tensor: Tensor) -> str:
    return "BYTES" if tensor.data_type == "TYPE_STRING" else tensor.data_type.removeprefix("TYPE_")


def _events(kind: str, tokens: int) -> Answer:
    token = {"delta": {"content": " token"}} if kind == "chat" else {"text": " token"}
    event = b"data: " + orjson.dumps({"choices": [{"index": 0, **token}]}) + b"\n\n"
    return [("content-type", "text/event-stream")], event * tokens + b"data: [DONE]\n\n"


async def serve_grpc(job: Job, port: int) -> None:
    """The same over gRPC: one fixed answer to every ModelInfer, until cancelled."""
    import grpc
    import grpc.aio

    answer = _message(job)

    async def infer(_: bytes, __: object) -> bytes:
        return answer

    methods = {"ModelInfer": grpc.unary_unary_rpc_method_handler(infer)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("inference.GRPCInferenceService", methods),)
    )
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


def _message(job: Job) -> bytes:
    from tritonclient.grpc import service_pb2

    request: Any = job.workload.request
    headers, body = _tensors(job, request.batch_size, binary=True)
    length = int(dict(headers)[HEADER_LENGTH])
    message, at = service_pb2.ModelInferResponse(model_name=job.spec.name), length
    for said in orjson.loads(body[:length])["outputs"]:
        output = message.outputs.add()
        output.name, output.datatype = said["name"], said["datatype"]
        output.shape.extend(said["shape"])
        size = said["parameters"]["binary_data_size"]
        message.raw_output_contents.append(body[at : at + size])
        at += size
    text: bytes = message.SerializeToString()
    return text


def main() -> None:
    """Answer on a loopback port until SIGTERM or SIGINT."""
    from loadtest.rsgi import run

    job, port = job_from(Path(sys.argv[1]).read_bytes()), int(sys.argv[2])
    mean_ms = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    if job.workload.request.kind == "triton_grpc":
        asyncio.run(serve_grpc(job, port))
    else:
        run(NullServer(job, mean_ms), port)


if __name__ == "__main__":
    main()
