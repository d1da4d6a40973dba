"""A server that computes nothing and answers well: what a generator is measured against.

    python -m loadtest.null_server JOB PORT

Every inference gets the right outputs, all zeros; every chat or completion a stream of as many
tokens as the workload asks for, with nothing between them. What is then measured is the generator.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from loadtest.job import job_from
from serving.tensors import ITEM_BYTES

if TYPE_CHECKING:
    from loadtest.job import Job
    from serving.tensors import Tensor

HEADER_LENGTH: Final = "inference-header-content-length"

Answer = tuple[list[tuple[str, str]], bytes]


class NullServer:
    """One fixed answer to every POST, and 200 to everything else.

    Args:
        job: the load test that it stands in for.
    """

    def __init__(self, job: Job) -> None:
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
            protocol.response_bytes(200, self._headers, self._body)
        else:
            protocol.response_empty(200, [])


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


def main() -> None:
    """Answer on a loopback port until SIGTERM or SIGINT."""
    from loadtest.rsgi import run

    run(NullServer(job_from(Path(sys.argv[1]).read_bytes())), int(sys.argv[2]))


if __name__ == "__main__":
    main()
