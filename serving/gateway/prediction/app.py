"""The hop itself: a request is checked, answered from the cache or by a model, counted and logged.

    POST /v2/models/<model>/infer    from the gateway, with the version it chose in headers
    GET  /live, GET /metrics         for the stack, on the same loopback port

An RSGI application, which is granian's own interface and its cheapest.
"""

import logging
from collections.abc import Awaitable, Callable
from time import perf_counter, time
from typing import Any, Final, cast

from serving.gateway.prediction.answer import Answer, error_answer, with_id
from serving.gateway.prediction.body import Refusal, Request, key_of, read_request
from serving.gateway.prediction.cache import CacheState, PredictionCache
from serving.gateway.prediction.log import PredictionLog
from serving.gateway.prediction.metrics import Metrics
from serving.gateway.prediction.record import Record
from serving.gateway.prediction.samples import Sample, sampled
from serving.gateway.prediction.schema import Served
from serving.gateway.prediction.settings import Settings
from serving.gateway.prediction.table import Table
from serving.gateway.prediction.upstream import Upstream, UpstreamError
from serving.gateway.prediction.valkey import Valkey

# Bodies in memory at once; beyond it requests are refused, so that memory has an end.
MOST_HELD_BYTES: Final = 64 * 1024 * 1024
_PREFIX, _SUFFIX = "/v2/models/", "/infer"
_NOT_KEPT = frozenset({"no-store", "no-cache"})

_log = logging.getLogger(__name__)


class Exchange:
    """One request on its way, and when it got where."""

    __slots__ = (
        *("answered", "arrived", "client", "digest", "inputs", "model", "request_bytes"),
        *("request_id", "sent", "started", "version"),
    )

    def __init__(self, model: str, headers: Any) -> None:
        self.arrived = time()
        self.started = perf_counter()
        self.model = model
        self.version: str = headers.get("x-galley-version", "")
        self.digest: str = headers.get("x-galley-digest", "")
        self.client: str = headers.get("x-galley-client", "")
        self.request_id: str = headers.get("x-request-id", "")
        self.sent = self.answered = 0.0
        self.request_bytes = 0
        self.inputs: Sample | None = None


class Hop:
    """What one process answers."""

    def __init__(self, settings: Settings) -> None:
        self.metrics = Metrics()
        self._settings = settings
        self._table = Table(settings.table)
        self._upstream = Upstream(settings.upstream_host, settings.upstream_port)
        self._log = PredictionLog(settings.log_folder, settings.name)
        self._valkey: Valkey | None = None
        self._cache: PredictionCache | None = None

    def __rsgi_init__(self, _: Any) -> None:
        """Connect, in the loop that requests come in by."""
        server = self._settings.cache
        if server is not None:
            self._valkey = Valkey(server.host, server.port, server.username, server.password)
            self._valkey.start()
            self._cache = PredictionCache(
                self._valkey, self._settings.mac_key, self._cache_was_no_help
            )

    def _cache_was_no_help(self, reason: str) -> None:
        self.metrics.cache_faults[reason] += 1

    async def close(self) -> None:
        """Finish what is being computed, then let go of everything."""
        if self._cache is not None:
            await self._cache.close()
        if self._valkey is not None:
            await self._valkey.close()
        self._upstream.close()
        self._log.close()

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """Answer one request."""
        path: str = scope.path
        model = path[len(_PREFIX) : -len(_SUFFIX)]
        inference = path.startswith(_PREFIX) and path.endswith(_SUFFIX) and "/" not in model
        if scope.method == "POST" and inference:
            await self._infer(scope, protocol, Exchange(model, scope.headers))
        elif scope.method == "GET" and path == "/live":
            protocol.response_empty(200, [])
        elif scope.method == "GET" and path == "/metrics":
            self.metrics.log_dropped = self._log.dropped
            protocol.response_bytes(200, [("content-type", "text/plain")], self.metrics.text())
        else:
            protocol.response_bytes(*_plain(error_answer(404, "no such path at this hop")))

    async def _infer(self, scope: Any, protocol: Any, exchange: Exchange) -> None:
        served = self._table.get(exchange.model, exchange.digest)
        state: CacheState = "bypass"
        if served is None:
            answer = error_answer(503, "this version is not served here", retry_after="1")
            protocol.response_bytes(*_plain(answer))
            return
        flights = self.metrics.in_flight
        place = served.model, exchange.version
        flights[place] += 1
        try:
            answer, state = await self._answer(scope.headers, protocol, exchange, served)
        except Refusal as refusal:
            answer = error_answer(refusal.status, refusal.message)
            self.metrics.refusals[served.model, str(refusal.status)] += 1
        except UpstreamError as error:
            answer = error_answer(error.status, error.message)
        except Exception:
            # Whatever it is, the client gets an answer, and others are not touched.
            self.metrics.failures += 1
            _log.exception("request %s failed", exchange.request_id)
            answer = error_answer(500, "the gateway failed on this request")
        finally:
            flights[place] -= 1
        headers = [
            ("content-type", answer.content_type),
            ("x-galley-cache", state),
            ("x-galley-version", exchange.version),
            ("x-galley-digest", exchange.digest),
        ]
        if answer.header_length is not None:
            headers.append(("inference-header-content-length", str(answer.header_length)))
        if answer.retry_after is not None:
            headers.append(("retry-after", answer.retry_after))
        protocol.response_bytes(answer.status, headers, answer.body)
        self._record(served, exchange, answer, state)

    async def _answer(
        self, headers: Any, protocol: Any, exchange: Exchange, served: Served
    ) -> tuple[Answer, CacheState]:
        size = _admitted(headers)
        metrics = self.metrics
        if metrics.held_bytes + size > MOST_HELD_BYTES:
            return error_answer(429, "too many bytes are in flight here", retry_after="1"), "bypass"
        metrics.held_bytes += size
        try:
            body = await protocol()
            exchange.request_bytes = len(body)
            request = read_request(
                served.schema, body, headers.get("inference-header-content-length")
            )
            del body
            if sampled(served.log, exchange.request_id) and served.log:
                exchange.inputs = Sample.of(request.body, request.header_length, served.log.redact)
            answer, state = await self._kept(headers, exchange, served, request)
        finally:
            metrics.held_bytes -= size
        return with_id(answer, request.id), state

    async def _kept(
        self, headers: Any, exchange: Exchange, served: Served, request: Request
    ) -> tuple[Answer, CacheState]:
        """The model's answer, from the cache where the model and the client have it so."""
        fetch = self._fetching(exchange, served, request)
        rule, cache = served.cache, self._cache
        past = headers.get("cache-control", "").strip().lower() in _NOT_KEPT
        if rule is None or cache is None or past or not request.cacheable:
            return await fetch(), "bypass"
        # The version beside the digest, since an answer names it.
        artifact = f"{served.model}/{exchange.version}@{served.digest}"
        key = key_of(request, artifact, exchange.client if rule.per_client else None)
        return await cache.answer(key, rule.ttl_seconds, fetch, served.timeout_seconds)

    def _fetching(
        self, exchange: Exchange, served: Served, request: Request
    ) -> Callable[[], Awaitable[Answer]]:
        path = f"/v2/models/{served.model}/versions/{exchange.version}/infer"

        async def fetch() -> Answer:
            exchange.sent = perf_counter()
            try:
                return await self._upstream.infer(
                    path,
                    request.body,
                    request.header_length,
                    exchange.request_id,
                    served.timeout_seconds,
                )
            except UpstreamError as error:
                # An answer like any other, for all who wait for it.
                return error_answer(error.status, error.message)
            finally:
                exchange.answered = perf_counter()

        return fetch

    def _record(self, served: Served, exchange: Exchange, answer: Answer, state: str) -> None:
        done = perf_counter()
        seconds = done - exchange.started
        self.metrics.answered(
            served, exchange.version, exchange.client, state, answer.status, seconds
        )
        outputs = None
        if exchange.inputs is not None and answer.status == 200 and served.log:
            outputs = Sample.of(answer.body, answer.header_length, served.log.redact)
        sent = exchange.sent or done
        self._log.write(
            Record(
                time=exchange.arrived,
                request_id=exchange.request_id,
                client=exchange.client,
                model=exchange.model,
                version=_number(exchange.version),
                digest=exchange.digest,
                cache=state,
                status=answer.status,
                queue_ms=(sent - exchange.started) * 1000,
                compute_ms=(exchange.answered - exchange.sent) * 1000 if exchange.sent else 0.0,
                total_ms=seconds * 1000,
                request_bytes=exchange.request_bytes,
                response_bytes=len(answer.body),
                error=None if answer.status == 200 else _reason(answer),
                inputs=exchange.inputs,
                outputs=outputs,
            )
        )


def _admitted(headers: Any) -> int:
    """Size of the body that is to come, in bytes.

    Raises:
        Refusal: it is compressed, or of no stated size; the gateway always states one.
    """
    encoding = headers.get("content-encoding")
    if encoding is not None and encoding.strip().lower() != "identity":
        raise Refusal("compressed requests are not taken; send the body as it is", 415)
    length = cast(str, headers.get("content-length", ""))
    if not (length.isascii() and length.isdigit()):
        raise Refusal("the request does not state its size; send content-length", 411)
    return int(length)


def _plain(answer: Answer) -> tuple[int, list[tuple[str, str]], bytes]:
    headers = [("content-type", answer.content_type)]
    if answer.retry_after is not None:
        headers.append(("retry-after", answer.retry_after))
    return answer.status, headers, answer.body


def _number(version: str) -> int:
    return int(version) if version.isascii() and version.isdigit() else 0


def _reason(answer: Answer) -> str:
    return answer.body[:300].decode(errors="replace")
