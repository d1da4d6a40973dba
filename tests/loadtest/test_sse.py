"""Streams are read wherever they are cut, and a broken one is never a good answer."""

import re
from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.sse import Events, Tokens, whole_answer
from serving.judge.run import NEVER

STREAM = (
    b": a comment\r\n\r\ndata: one\ndata: two\n\nevent: x\rdata:three\r\r"
    b"data: four\r\n\r\nid: 7\ndata\n\ndata: five\r\n\n"
)
WANTED = [b"one\ntwo", b"three", b"four", b"", b"five"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_cut_gives_the_same_events(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    events = Events()
    found: list[bytes] = []
    for first, last in pairwise(edges):
        found += events.feed(STREAM[first:last])
    assert found == WANTED


def test_byte_by_byte_gives_the_same_events() -> None:
    events = Events()
    found = [event for byte in STREAM for event in events.feed(bytes([byte]))]
    assert found == WANTED


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_no_bytes_break_the_reader(pieces: list[bytes]) -> None:
    tokens = Tokens()
    for piece in pieces:
        tokens.feed(1, piece)
    tokens.fault()


def chunk(**delta: object) -> bytes:
    return b"data: " + orjson.dumps({"choices": [{"index": 0, "delta": delta}]}) + b"\n\n"


def test_the_first_token_is_the_first_text_and_not_the_role() -> None:
    tokens = Tokens()
    tokens.feed(10, chunk(role="assistant", content=""))
    tokens.feed(20, chunk(content="He"))
    tokens.feed(30, chunk(content="llo") + chunk(content="!"))
    tokens.feed(40, b"data: [DONE]\n\n")
    assert (tokens.first, tokens.last, tokens.tokens) == (20, 30, 3)
    assert tokens.inter_token == 5
    assert tokens.fault() is None


def test_reasoning_counts_and_the_servers_own_count_goes_first() -> None:
    tokens = Tokens()
    tokens.feed(10, chunk(reasoning_content="hm"))
    usage = {"choices": [], "usage": {"completion_tokens": 11}}
    tokens.feed(110, chunk(content="x") + b"data: " + orjson.dumps(usage) + b"\n\n")
    tokens.feed(120, b"data: [DONE]\n\n")
    assert (tokens.first, tokens.tokens, tokens.inter_token) == (10, 11, 10)
    assert tokens.fault() is None


# P14: what looks like an answer and is none.


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (chunk(content="x"), r"without \[DONE\]"),
        (b"data: [DONE]\n\n", "no token"),
        (chunk(role="assistant") + b"data: [DONE]\n\n", "no token"),
        (b'data: {"error": {"message": "out of memory"}}\n\n', "out of memory"),
        (chunk(content="x") + b"data: {oops\n\ndata: [DONE]\n\n", "cannot be read"),
        (b"data: [DONE]\n\n" + chunk(content="x"), r"after \[DONE\]"),
        (b"", r"without \[DONE\]"),
        (chunk(content="x") + b"event: error\ndata: {}\n\ndata: [DONE]\n\n", "named error"),
        (b'data: {"usage": {"completion_tokens": "many"}}\n\n', "cannot be read"),
    ],
)
def test_a_stream_that_is_not_whole_is_bad(stream: bytes, why: str) -> None:
    tokens = Tokens()
    tokens.feed(1, stream)

    assert re.search(why, tokens.fault() or "")


def test_a_stream_of_one_token_has_no_time_between_tokens() -> None:
    tokens = Tokens()
    assert tokens.inter_token == NEVER
    tokens.feed(5, chunk(content="x") + b"data: [DONE]\n\n")
    assert tokens.inter_token == 0


def test_an_answer_that_comes_at_once_is_read_whole() -> None:
    good = {"choices": [{"message": {"content": "x"}}], "usage": {"completion_tokens": 4}}
    assert whole_answer(orjson.dumps(good)) == (4, None)
    plain = {"choices": [{"text": "x"}], "usage": {"completion_tokens": 1}}
    assert whole_answer(orjson.dumps(plain)) == (1, None)
    for wrong in (b"", b"{}", b'{"choices": []}', b"[1]"):
        assert whole_answer(wrong)[1]
    empty = {"choices": [{"text": ""}], "usage": {"completion_tokens": 0}}
    assert whole_answer(orjson.dumps(empty)) == (0, "the answer is empty")
