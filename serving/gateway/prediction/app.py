"""The hop itself: a request is checked, answered from the cache or by a model, counted and logged.

    POST /v2/models/<model>/infer    from the gateway, with the version it chose in headers
    GET  /live, GET /metrics         for the stack, on the same loopback port

An RSGI application, which is granian's own interface and its cheapest.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import perf_counter
from typing import Any, Final

from granian.rsgi import ProtocolClosed  # type: ignore[attr-defined]  # public, and not said so

from serving.gateway.prediction.answer import Answer, error_answer, with_id
from serving.gateway.prediction.body import Refusal, Request, key_of, read_request
from serving.gateway.prediction.cache import CacheState, PredictionCache
from serving.gateway.prediction.exchange import Exchange, goes_past_the_cache, stated_size
from serving.gateway.prediction.known import Known, KnownBodies, name_of
from serving.gateway.prediction.log import PredictionLog
from serving.gateway.prediction.metrics import Metrics
from serving.gateway.prediction.samples import Sample, sampled
from serving.gateway.prediction.schema import CacheRule, Served
from serving.gateway.prediction.settings import Settings
from serving.gateway.prediction.table import Table
from serving.gateway.prediction.upstream import Upstream, UpstreamError
from serving.gateway.prediction.valkey import Valkey

# Bodies in memory at once; beyond it requests are refused, so that memory has an end.
MOST_HELD_BYTES: Final = 64 * 1024 * 1024
CLOSE_SECONDS: Final = 1.0
PASS_OVER_SECONDS: Final = 5.0
_PREFIX, _SUFFIX = "/v2/models/", "/infer"

_log = logging.getLogger(__name__)


class Hop:
    """What one process answers."""

    def __init__(self, settings: Settings) -> None:
        self.metrics = Metrics()
        self._settings = settings
        self._table = Table(settings.table)
        self._known = KnownBodies()
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
        """Finish what is being computed, if that is soon, then let go of everything."""
        if self._cache is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
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
            protocol.response_bytes(200, [("content-type", "text/plain")], self._scraped())
        else:
            protocol.response_bytes(*_plain(error_answer(404, "no such path at this hop")))

    def _scraped(self) -> bytes:
        metrics, log = self.metrics, self._log
        metrics.table_faults = self._table.faults
        metrics.log_dropped = log.dropped
        metrics.log_samples_dropped = log.dropped_samples
        metrics.log_segments_removed = log.removed_segments
        return metrics.text()

    async def _infer(self, scope: Any, protocol: Any, exchange: Exchange) -> None:
        state: CacheState = "bypass"
        served = self._table.get(exchange.model, exchange.digest)
        if served is None or not exchange.has_version:
            # Of no version, so its name makes no series.
            self.metrics.unserved += 1
            answer = error_answer(503, "this version is not served here", retry_after="1")
            exchange.digest, served = "", None
        else:
            answer, state = await self._guarded(scope.headers, protocol, exchange, served)
        if not exchange.read:
            await _pass_over(protocol)
        protocol.response_bytes(answer.status, exchange.headers_of(answer, state), answer.body)
        self._record(served, exchange, answer, state)

    async def _guarded(
        self, headers: Any, protocol: Any, exchange: Exchange, served: Served
    ) -> tuple[Answer, CacheState]:
        """An answer, whatever happens."""
        flights = self.metrics.in_flight
        place = served.model, exchange.version
        flights[place] += 1
        try:
            return await self._answer(headers, protocol, exchange, served)
        except Refusal as refusal:
            self.metrics.refusals[served.model, str(refusal.status)] += 1
            return error_answer(refusal.status, refusal.message), "bypass"
        except UpstreamError as error:
            return error_answer(error.status, error.message), "bypass"
        except Exception:
            # Whatever it is, the client gets an answer, and others are not touched.
            self.metrics.failures += 1
            _log.exception("request %s failed", exchange.request_id)
            return error_answer(500, "the gateway failed on this request"), "bypass"
        finally:
            flights[place] -= 1

    async def _answer(
        self, headers: Any, protocol: Any, exchange: Exchange, served: Served
    ) -> tuple[Answer, CacheState]:
        size = stated_size(headers)
        metrics = self.metrics
        if metrics.held_bytes + size > MOST_HELD_BYTES:
            metrics.refusals[served.model, "429"] += 1
            return error_answer(429, "too many bytes are in flight here", retry_after="1"), "bypass"
        metrics.held_bytes += size
        exchange.read = True
        try:
            try:
                body = await protocol()
            except ProtocolClosed:
                # For the metrics and the log: nobody is there to read it.
                raise Refusal("the body broke off; send as many bytes as are stated") from None
            exchange.request_bytes = len(body)
            if served.hash_header is not None:
                value: str | None = headers.get(served.hash_header)
                exchange.hashed = None if value is None else (served.hash_header, value)
            length = headers.get("inference-header-content-length")
            rule, cache = served.cache, self._cache
            if rule is None or cache is None or goes_past_the_cache(headers):
                request = self._read(exchange, served, body, length)
                answer = await self._fetching(exchange, served, request)()
                return with_id(answer, request.id), "bypass"
            return await self._kept(exchange, served, rule, cache, body, length)
        finally:
            metrics.held_bytes -= size

    async def _kept(
        self,
        exchange: Exchange,
        served: Served,
        rule: CacheRule,
        cache: PredictionCache,
        body: bytes,
        length: str | None,
    ) -> tuple[Answer, CacheState]:
        """The model's answer, through the cache."""
        client = exchange.client if rule.per_client else None
        name = known = None
        if not sampled(served.log, exchange.request_id):
            name = name_of(served, exchange.version, client, length, body)
            known = self._known.get(name, served) if name else None
        if known is None:
            request = self._read(exchange, served, body, length)
            fetch = self._fetching(exchange, served, request)
            if not request.cacheable:
                return with_id(await fetch(), request.id), "bypass"
            # The version beside the digest, since an answer names it.
            artifact = f"{served.model}/{exchange.version}@{served.digest}"
            key, id_ = key_of(request, artifact, client), request.id
        else:
            key, id_ = known.key, None

            def fetch() -> Awaitable[Answer]:
                request = self._read(exchange, served, body, length)
                return self._fetching(exchange, served, request)()

        answer, state = await cache.answer(key, rule.ttl_seconds, fetch, served.timeout_seconds)
        if state == "hit" and known is None and name is not None and id_ is None:
            self._known.add(name, Known(served, key))
        return with_id(answer, id_), state

    def _read(self, exchange: Exchange, served: Served, body: bytes, length: str | None) -> Request:
        request = read_request(served.schema, body, length)
        if served.log and sampled(served.log, exchange.request_id):
            exchange.inputs = Sample.of(request.body, request.header_length, served.log.redact)
        return request

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
                    repeatable=request.cacheable,
                    header=exchange.hashed,
                )
            except UpstreamError as error:
                # An answer like any other, for all who wait for it.
                return error_answer(error.status, error.message)
            finally:
                exchange.answered = perf_counter()

        return fetch

    def _record(
        self, served: Served | None, exchange: Exchange, answer: Answer, state: CacheState
    ) -> None:
        done = perf_counter()
        if served is not None:
            self.metrics.answered(
                served,
                exchange.version,
                exchange.client,
                state,
                answer.status,
                done - exchange.started,
            )
        self._log.write(exchange.record_of(answer, state, done, served.log if served else None))


async def _pass_over(protocol: Any) -> None:
    """Take in a body that nobody reads, piece by piece.

    An answer before the end of a body closes the connection, and what had not been read by then
    resets it: the answer may be lost with it.
    """
    with suppress(ProtocolClosed, TimeoutError):
        async with asyncio.timeout(PASS_OVER_SECONDS):
            async for _ in protocol:
                pass


def _plain(answer: Answer) -> tuple[int, list[tuple[str, str]], bytes]:
    headers = [("content-type", answer.content_type)]
    if answer.retry_after is not None:
        headers.append(("retry-after", answer.retry_after))
    return answer.status, headers, answer.body
