import json

from loadtest.bench.bodies import (
    BINARY_ANSWER,
    BINARY_ANSWER_HEADERS,
    CHAT_ANSWER,
    HEADER_LENGTH,
    JSON_ANSWER,
    chat_request,
    ranker_requests,
)
from loadtest.bench.hop import HEADERS, RANKER
from serving.gateway.prediction.body import key_of, read_request


def parted(request: bytes) -> tuple[dict[str, str], bytes]:
    head, _, body = request.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")[1:]
    return dict(line.split(": ", 1) for line in lines), body


def keys(requests: list[bytes]) -> list[bytes]:
    """The hop's own keys of these requests; it refuses a body that is no good."""
    found = []
    for request in requests:
        headers, body = parted(request)
        read = read_request(RANKER.schema, body, headers.get(HEADER_LENGTH))
        assert read.cacheable
        found.append(key_of(read, RANKER.digest, None))
    return found


def test_every_request_is_good_and_another_one() -> None:
    for binary in (True, False):
        found = keys(ranker_requests(50, 3, HEADERS, binary=binary))
        assert len(set(found)) == 50


def test_the_same_seed_gives_the_same_requests() -> None:
    assert ranker_requests(5, 3, HEADERS) == ranker_requests(5, 3, HEADERS)
    assert ranker_requests(5, 3, HEADERS) != ranker_requests(5, 4, HEADERS)


def test_requests_state_their_size_and_have_the_size_that_is_claimed() -> None:
    for binary, low, high in ((True, 2_048, 2_500), (False, 4_500, 6_000)):
        headers, body = parted(ranker_requests(1, 1, HEADERS, binary=binary)[0])
        assert int(headers["content-length"]) == len(body)
        assert low < len(body) < high


def test_answers_are_what_their_headers_say() -> None:
    length = int(dict(BINARY_ANSWER_HEADERS)[HEADER_LENGTH])
    output = json.loads(BINARY_ANSWER[:length])["outputs"][0]
    assert len(BINARY_ANSWER) - length == output["parameters"]["binary_data_size"] == 4
    assert json.loads(JSON_ANSWER)["outputs"][0]["data"] == [0.5]
    assert json.loads(CHAT_ANSWER)["choices"][0]["message"]["role"] == "assistant"


def test_a_chat_request_carries_the_key() -> None:
    headers, body = parted(chat_request("/v1/chat/completions", {"authorization": "Bearer k"}))
    assert headers["authorization"] == "Bearer k"
    assert json.loads(body)["messages"]
