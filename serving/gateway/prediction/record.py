"""One answer as the prediction log tells it: a line of JSON, without tensors unless sampled."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from serving.gateway.prediction.samples import Sample


class Record(NamedTuple):
    """One answer. It becomes text in the log's thread, so making one costs the request little.

    A tuple, since a frozen dataclass of so many fields takes five times as long to make.

    time: when the request arrived, in seconds since 1970; the line has it as UTC with milliseconds
    model, version, digest: what the request was for; where no such version is served, what it asked
        for, with an empty digest
    cache: hit, miss or bypass
    queue_ms: from the request's arrival at the hop until it was sent to a model server
    compute_ms: at the model server, from sending until the answer was read; the wait in its own
        batching queue is in it, since Triton does not tell that wait of one request
    total_ms: from arrival until the answer was ready to send
    request_bytes, response_bytes: sizes of the bodies as the client sent and got them
    error: a short reason where the status is not 200; never a tensor's values
    inputs, outputs: the tensors, only where the spec has a log rule and the request is sampled
    """

    time: float
    request_id: str
    client: str
    model: str
    version: int
    digest: str
    cache: str
    status: int
    queue_ms: float
    compute_ms: float
    total_ms: float
    request_bytes: int
    response_bytes: int
    error: str | None = None
    inputs: Sample | None = None
    outputs: Sample | None = None

    @property
    def sample_bytes(self) -> int:
        """Memory that the sampled tensors hold."""
        samples = (self.inputs, self.outputs)
        return sum(len(each.head) + len(each.data) for each in samples if each is not None)


def line_of(record: Record) -> bytes:
    """The record as one line, line feed included; what is not there is left out."""
    line: dict[str, Any] = {
        "time": time_text(record.time),
        "request_id": record.request_id,
        "client": record.client,
        "model": record.model,
        "version": record.version,
        "digest": record.digest,
        "cache": record.cache,
        "status": record.status,
        "queue_ms": round(record.queue_ms, 3),
        "compute_ms": round(record.compute_ms, 3),
        "total_ms": round(record.total_ms, 3),
        "request_bytes": record.request_bytes,
        "response_bytes": record.response_bytes,
    }
    if record.error is not None:
        line["error"] = record.error
    if record.inputs is not None:
        line["inputs"] = record.inputs.tensors()
    if record.outputs is not None:
        line["outputs"] = record.outputs.tensors()
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def time_text(seconds: float) -> str:
    """A time as lines have it; such texts sort as the times do.

    >>> time_text(1_796_083_200.25)
    '2026-12-01T00:00:00.250Z'
    """
    second, millisecond = divmod(round(seconds * 1000), 1000)
    return f"{_second_text(second)}.{millisecond:03}Z"


@lru_cache(maxsize=8)  # lines come many to a second, and this would be a third of a line's cost
def _second_text(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
