"""The caller's id goes into an answer that is kept and shared without one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.gateway.prediction.answer import Answer, error_answer, with_id

HEAD = b'{"model_name":"ranker","outputs":[]}'


def answer(body: bytes, header_length: int | None = None, status: int = 200) -> Answer:
    return Answer(status, body, header_length, "application/json")


@given(st.text())
def test_any_id_comes_back_as_it_was_sent(sent: str) -> None:
    body = with_id(answer(HEAD), json.dumps(sent).encode()).body
    assert json.loads(body) == {"id": sent, "model_name": "ranker", "outputs": []}


@given(st.text(), st.binary(max_size=20))
def test_binary_tensors_stay_where_the_header_says_that_they_are(sent: str, raw: bytes) -> None:
    told = with_id(answer(HEAD + raw, len(HEAD)), json.dumps(sent).encode())
    assert told.header_length is not None
    assert json.loads(told.body[: told.header_length])["id"] == sent
    assert told.body[told.header_length :] == raw


@pytest.mark.parametrize("body", [b"{}", b" { } ", b'\n{ "a": 1}'])
def test_an_object_without_members_or_with_spaces_takes_an_id_too(body: bytes) -> None:
    assert json.loads(with_id(answer(body), b'"7"').body)["id"] == "7"


def test_without_an_id_and_for_errors_nothing_changes() -> None:
    plain, error = answer(HEAD), error_answer(400, "no")
    assert with_id(plain, None) is plain
    assert with_id(error, b'"7"') is error
    assert json.loads(error.body) == {"error": "no"}


@given(st.binary(max_size=30))
def test_what_is_no_object_passes_unchanged(body: bytes) -> None:
    if not body.lstrip().startswith(b"{"):
        assert with_id(answer(body), b'"7"').body == body
