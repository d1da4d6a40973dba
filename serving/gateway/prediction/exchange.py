"""One request at the hop, from the headers that it came with to the line that the log has of it."""

from time import perf_counter, time
from typing import Any, Final

from serving.gateway.prediction.answer import Answer
from serving.gateway.prediction.record import Record
from serving.gateway.prediction.refusal import Refusal
from serving.gateway.prediction.samples import Sample
from serving.gateway.prediction.schema import LogRule

MOST_ERROR_BYTES: Final = 300
_NOT_KEPT = frozenset({"no-store", "no-cache"})


class Exchange:
    """A request on its way, and when it got where."""

    __slots__ = (
        *("answered", "arrived", "client", "digest", "inputs", "model", "request_bytes"),
        *("hashed", "read", "request_id", "sent", "started", "version"),
    )

    def __init__(self, model: str, headers: Any) -> None:
        self.arrived = time()
        self.started = perf_counter()
        self.model = model
        # As the gateway set them, whatever the client sent.
        get = headers.get
        self.version: str = get("x-galley-version", "")
        self.digest: str = get("x-galley-digest", "")
        self.client: str = get("x-galley-client", "")
        self.request_id: str = get("x-request-id", "")
        self.sent = self.answered = 0.0
        self.read = False
        self.request_bytes = 0
        self.inputs: Sample | None = None
        self.hashed: tuple[str, str] | None = None

    @property
    def has_version(self) -> bool:
        """Whether the version is a number, as it becomes part of a path."""
        return self.version.isascii() and self.version.isdigit()

    def headers_of(self, answer: Answer, state: str) -> list[tuple[str, str]]:
        """What the answer is sent with."""
        headers = [
            ("content-type", answer.content_type),
            ("x-galley-cache", state),
            ("x-galley-version", self.version),
            ("x-galley-digest", self.digest),
        ]
        if answer.header_length is not None:
            headers.append(("inference-header-content-length", str(answer.header_length)))
        if answer.retry_after is not None:
            headers.append(("retry-after", answer.retry_after))
        return headers

    def record_of(self, answer: Answer, state: str, done: float, rule: LogRule | None) -> Record:
        """What the log is told; `done` is of the same clock as `started`.

        `rule` is given where the answer's tensors may be told.
        """
        ok = answer.status == 200
        outputs = None
        if self.inputs is not None and ok and rule is not None:
            outputs = Sample.of(answer.body, answer.header_length, rule.redact)
        return Record(
            time=self.arrived,
            request_id=self.request_id,
            client=self.client,
            model=self.model,
            version=int(self.version) if self.has_version else 0,
            digest=self.digest,
            cache=state,
            status=answer.status,
            queue_ms=((self.sent or done) - self.started) * 1000,
            compute_ms=(self.answered - self.sent) * 1000 if self.sent else 0.0,
            total_ms=(done - self.started) * 1000,
            request_bytes=self.request_bytes,
            response_bytes=len(answer.body),
            error=None if ok else answer.body[:MOST_ERROR_BYTES].decode(errors="replace"),
            inputs=self.inputs,
            outputs=outputs,
        )


def stated_size(headers: Any) -> int:
    """Size of the body that is to come, in bytes.

    Raises:
        Refusal: it is compressed, or of no stated size; the gateway always states one.
    """
    encoding = headers.get("content-encoding")
    if encoding is not None and encoding.strip().lower() != "identity":
        raise Refusal("compressed requests are not taken; send the body as it is", 415)
    length: str = headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        raise Refusal("the request does not state its size; send content-length", 411)
    return int(length)


def goes_past_the_cache(headers: Any) -> bool:
    """Whether the client wants an answer that was computed for it: no-store or no-cache."""
    control: str | None = headers.get("cache-control")
    if control is None:
        return False
    return not _NOT_KEPT.isdisjoint(word.strip() for word in control.lower().split(","))
