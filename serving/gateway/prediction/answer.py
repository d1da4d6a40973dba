"""An answer as it travels from the model server through the hop to the client."""

import re
from dataclasses import dataclass, replace
from typing import Final

import orjson

JSON: Final = "application/json"
_OPENING = re.compile(rb"\s*\{\s*")


@dataclass(frozen=True, slots=True)
class Answer:
    """A model server's answer; `header_length` is None where all of the body is JSON."""

    status: int
    body: bytes
    header_length: int | None
    content_type: str
    retry_after: str | None = None


def error_answer(status: int, message: str, retry_after: str | None = None) -> Answer:
    """An error as JSON, as model servers tell theirs."""
    return Answer(status, orjson.dumps({"error": message}), None, JSON, retry_after)


def with_id(answer: Answer, request_id: bytes | None) -> Answer:
    """The answer with the caller's id, a JSON string with its quotes, as its first member.

    Answers are kept and shared without one. Errors stay as they are.
    """
    if request_id is None or answer.status != 200:
        return answer
    opening = _OPENING.match(answer.body)
    if opening is None:
        return answer
    rest = answer.body[opening.end() :]
    comma = b"" if rest[:1] == b"}" else b","
    body = b"".join((b'{"id":', request_id, comma, rest))
    length = answer.header_length
    if length is not None:
        length += len(body) - len(answer.body)
    return replace(answer, body=body, header_length=length)
