"""Asking Triton over gRPC, with gevent in charge of gRPC's own waiting."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from loadtest.engine.open_loop import Answered
from loadtest.payloads.triton import TensorBodies, datatype
from loadtest.records import GRPC, MALFORMED, TIMEOUT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loadtest.job import Job


class Calls:
    """What all users of a worker share: the channel, the call, the inputs.

    A channel holds many calls at once, and the gateway balances each on its own.

    Args:
        job: the load test.
    """

    def __init__(self, job: Job) -> None:
        import grpc
        import grpc.experimental.gevent as grpc_gevent
        from tritonclient.grpc import service_pb2, service_pb2_grpc

        grpc_gevent.init_gevent()
        parts = urlsplit(job.url)
        place = parts.netloc
        # One message may be as large as HTTP lets it be.
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        if parts.scheme == "https":
            trusted = None if job.ca is None else Path(job.ca).read_bytes()
            channel = grpc.secure_channel(place, grpc.ssl_channel_credentials(trusted), options)
        else:
            channel = grpc.insecure_channel(place, options)
        key = job.key()
        self.metadata = (("authorization", f"Bearer {key}"),) if key else ()
        self.call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        self.error = grpc.RpcError
        self.timeout = job.timeout_seconds
        self.name = f"inference.GRPCInferenceService/ModelInfer {job.spec.name}"
        self.bodies = TensorBodies(job)
        self._request = _template(job, service_pb2)

    def request(self, position: int) -> Any:
        """The message of this place in the schedule; good until the next call."""
        message = self._request
        del message.raw_input_contents[:]
        inputs = self.bodies.inputs(position)
        message.raw_input_contents.extend([_raw(values) for values in inputs.values()])
        return message


def _raw(values: NDArray[Any]) -> bytes:
    if values.dtype != object:
        return values.tobytes()
    from tritonclient.utils import serialize_byte_tensor

    text: bytes = serialize_byte_tensor(values).item()
    return text


def calls_of(job: Job) -> Calls:
    """The calls of a worker."""
    return Calls(job)


def _template(job: Job, service_pb2: Any) -> Any:
    from loadtest.payloads.tensors import batch_axis, shape_of

    rows = batch_axis(job.spec, getattr(job.workload.request, "batch_size", 1))
    message = service_pb2.ModelInferRequest(model_name=job.spec.name)
    for tensor in job.spec.inputs:
        one = message.inputs.add()
        one.name, one.datatype = tensor.name, datatype(tensor)
        one.shape.extend(shape_of(tensor, rows))
    for output in job.spec.outputs:
        message.outputs.add().name = output.name
    return message


class GrpcAsker:
    """One user's calls.

    Args:
        calls: shared by all users of a worker.
    """

    method = "GRPC"

    def __init__(self, calls: Calls) -> None:
        self.name = calls.name
        self._calls = calls

    def ask(self, position: int) -> Answered:
        """Make the call of this place in the schedule, and wait for its answer."""
        calls = self._calls
        request = calls.request(position)
        sent = time.monotonic_ns()
        try:
            answer = calls.call(request, timeout=calls.timeout, metadata=calls.metadata)
        except calls.error as error:
            ended = time.monotonic_ns()
            code: Any = error
            number, name = code.code().value
            status = TIMEOUT if name == "deadline exceeded" else GRPC + number
            return Answered(sent, ended, status, f"{name}: {code.details()}"[:200])
        ended = time.monotonic_ns()
        raw = answer.raw_output_contents
        if len(raw) != len(answer.outputs):
            why: str | None = f"{len(raw)} contents for {len(answer.outputs)} outputs"
        else:
            pairs = zip(answer.outputs, raw, strict=True)
            why = calls.bodies.fault_of([(one.name, one.shape, len(data)) for one, data in pairs])
        status = 200 if why is None else MALFORMED
        return Answered(sent, ended, status, why, size_bytes=sum(map(len, raw)))
