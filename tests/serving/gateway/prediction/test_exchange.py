"""What a request's headers say, what its answer's say, and the line that the log has of both."""

import pytest

from serving.gateway.prediction.answer import JSON, Answer, error_answer
from serving.gateway.prediction.exchange import (
    MOST_ERROR_BYTES,
    Exchange,
    goes_past_the_cache,
    stated_size,
)
from serving.gateway.prediction.refusal import Refusal
from serving.gateway.prediction.samples import Sample
from serving.gateway.prediction.schema import LogRule

HEADERS = {
    "x-galley-version": "3",
    "x-galley-digest": "sha256:a",
    "x-galley-client": "ads",
    "x-request-id": "r-1",
}
ANSWER = Answer(200, b"{}abcd", 2, "application/octet-stream")


@pytest.mark.parametrize(
    ("control", "goes_past"),
    [
        (None, False),
        ("", False),
        ("no-store", True),
        ("No-Cache", True),
        ("max-age=0, no-cache", True),
        ("no-store,no-transform", True),
        ("max-age=60", False),
        ("no-storeroom", False),
    ],
)
def test_a_client_goes_past_the_cache_by_saying_no_store_or_no_cache(
    control: str | None, goes_past: bool
) -> None:
    assert goes_past_the_cache({"cache-control": control} if control is not None else {}) == (
        goes_past
    )


@pytest.mark.parametrize("coding", ["gzip", "deflate, gzip", "", "br"])
def test_a_coded_body_is_refused_before_it_is_read(coding: str) -> None:
    with pytest.raises(Refusal) as refused:
        stated_size({"content-encoding": coding, "content-length": "2"})
    assert refused.value.status == 415


@pytest.mark.parametrize("length", [None, "", "-1", "+1", "1e3", "٣", "0x10"])
def test_a_body_of_no_stated_size_is_refused_before_it_is_read(length: str | None) -> None:
    with pytest.raises(Refusal) as refused:
        stated_size({} if length is None else {"content-length": length})
    assert refused.value.status == 411


def test_the_size_is_the_one_that_is_stated() -> None:
    assert stated_size({"content-length": "17", "content-encoding": "Identity"}) == 17


@pytest.mark.parametrize("version", ["", "-1", "1/../2", "1 HTTP/1.1", "٣", "latest"])
def test_a_version_is_a_number(version: str) -> None:
    assert Exchange("m", HEADERS).has_version
    assert not Exchange("m", {**HEADERS, "x-galley-version": version}).has_version


def test_every_answer_tells_where_it_came_from_and_how_long_its_json_is() -> None:
    headers = dict(Exchange("m", HEADERS).headers_of(ANSWER, "hit"))
    assert headers == {
        "content-type": "application/octet-stream",
        "x-galley-cache": "hit",
        "x-galley-version": "3",
        "x-galley-digest": "sha256:a",
        "inference-header-content-length": "2",
    }
    error = error_answer(429, "later", retry_after="1")
    assert dict(Exchange("m", HEADERS).headers_of(error, "bypass"))["retry-after"] == "1"


def test_the_time_is_split_into_waiting_and_computing() -> None:
    exchange = Exchange("m", HEADERS)
    exchange.started, exchange.sent, exchange.answered = 1.0, 1.25, 1.75
    record = exchange.record_of(ANSWER, "miss", 2.0, None)
    assert (record.queue_ms, record.compute_ms, record.total_ms) == (250.0, 500.0, 1000.0)
    assert (record.model, record.version, record.client, record.cache) == ("m", 3, "ads", "miss")
    assert (record.error, record.inputs, record.outputs) == (None, None, None)


def test_a_hit_computes_nothing_and_waits_until_its_answer() -> None:
    exchange = Exchange("m", HEADERS)
    exchange.started = 1.0
    record = exchange.record_of(ANSWER, "hit", 1.5, None)
    assert (record.queue_ms, record.compute_ms, record.total_ms) == (500.0, 0.0, 500.0)


def test_an_error_is_told_shortly_and_without_tensors() -> None:
    exchange, rule = Exchange("m", HEADERS), LogRule(1.0, ())
    exchange.inputs = Sample.of(b"{}", None, ())
    error = Answer(500, b"x" * 10_000, None, JSON)
    record = exchange.record_of(error, "miss", exchange.started, rule)
    assert (record.error, record.outputs) == ("x" * MOST_ERROR_BYTES, None)


def test_an_answers_tensors_are_told_where_the_requests_are() -> None:
    exchange, rule = Exchange("m", HEADERS), LogRule(1.0, ())
    assert exchange.record_of(ANSWER, "miss", exchange.started, rule).outputs is None
    exchange.inputs = Sample.of(b"{}", None, ())
    outputs = exchange.record_of(ANSWER, "miss", exchange.started, rule).outputs
    assert outputs == Sample.of(ANSWER.body, 2, ())
