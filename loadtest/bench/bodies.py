"""Requests and answers of the benchmarks, as bytes; the same seed gives the same ones."""

import json
import random
import struct
from collections.abc import Mapping
from typing import Final

FEATURES: Final = 512
RANKER_PATH: Final = "/v2/models/ranker/infer"
HEADER_LENGTH: Final = "inference-header-content-length"

_BINARY_HEADER: Final = json.dumps(
    {
        "inputs": [
            {
                "name": "input0",
                "shape": [1, FEATURES],
                "datatype": "FP32",
                "parameters": {"binary_data_size": 4 * FEATURES},
            }
        ],
        "outputs": [{"name": "score", "parameters": {"binary_data": True}}],
    }
).encode()

_BINARY_ANSWER_HEADER: Final = (
    b'{"model_name":"ranker","model_version":"1","outputs":[{"name":"score","datatype":"FP32",'
    b'"shape":[1,1],"parameters":{"binary_data_size":4}}]}'
)
BINARY_ANSWER: Final = _BINARY_ANSWER_HEADER + struct.pack("<f", 0.5)
BINARY_ANSWER_HEADERS: Final = [
    ("content-type", "application/octet-stream"),
    (HEADER_LENGTH, str(len(_BINARY_ANSWER_HEADER))),
]
JSON_ANSWER: Final = (
    b'{"model_name":"ranker","model_version":"1","outputs":[{"name":"score","datatype":"FP32",'
    b'"shape":[1,1],"data":[0.5]}]}'
)
JSON_ANSWER_HEADERS: Final = [("content-type", "application/json")]

CHAT_REQUEST: Final = json.dumps(
    {
        "model": "chat",
        "messages": [
            {"role": "system", "content": "You answer in one sentence."},
            {"role": "user", "content": "What does a load balancer do?"},
        ],
        "max_tokens": 64,
        "temperature": 0,
    }
).encode()
CHAT_ANSWER: Final = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "chat",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "It spreads requests over the servers that can answer them.",
                },
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 25, "completion_tokens": 12, "total_tokens": 37},
    }
).encode()


def http_request(path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    """A whole HTTP/1.1 POST request, its size stated."""
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join((*lines, f"content-length: {len(body)}", "", "")).encode() + body


def ranker_requests(
    count: int, seed: int, headers: Mapping[str, str], *, binary: bool = True
) -> list[bytes]:
    """That many requests to the ranker, each with other features.

    As binary tensors (a body of about 2.2 kB) or as JSON (about 5 kB).
    """
    rng = random.Random(seed)  # noqa: S311 - no secret: the same seed is to give the same features
    return [_ranker_request(rng, headers, binary=binary) for _ in range(count)]


def _ranker_request(rng: random.Random, headers: Mapping[str, str], *, binary: bool) -> bytes:
    if binary:
        # Halves of 16-bit numbers are exact in FP32, and never NaN.
        raw = struct.unpack(f"<{FEATURES}h", rng.randbytes(2 * FEATURES))
        body = _BINARY_HEADER + struct.pack(f"<{FEATURES}f", *(each / 2 for each in raw))
        framing = {
            "content-type": "application/octet-stream",
            HEADER_LENGTH: str(len(_BINARY_HEADER)),
        }
    else:
        # As text about 9 characters each, as features that were normalised are.
        data = [round(rng.uniform(-1, 1), 6) for _ in range(FEATURES)]
        tensor = {"name": "input0", "shape": [1, FEATURES], "datatype": "FP32", "data": data}
        body = json.dumps({"inputs": [tensor]}, separators=(",", ":")).encode()
        framing = {"content-type": "application/json"}
    return http_request(RANKER_PATH, body, {**headers, **framing})


def chat_request(path: str, headers: Mapping[str, str]) -> bytes:
    """A chat request in OpenAI's form."""
    return http_request(path, CHAT_REQUEST, {**headers, "content-type": "application/json"})
