"""What is stored under a cache key: an answer, or the claim of who is computing it.

Layout: magic and version (3 bytes), kind (1), MAC (16), and for an answer the length of its JSON
part (4, all ones where all of the body is JSON), the length of the content type (2), the content
type, the body; for a claim, whose it is. The MAC covers the cache key and everything but itself,
so that an entry counts only under the key it was made for, whole, and from somebody who knows the
secret.
"""

import hmac
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Final

from serving.gateway.prediction.answer import Answer

SHORTEST_SECRET: Final = 16
LONGEST_SECRET: Final = 64

_CLAIM: Final = b"gp\x01c"
_ANSWER: Final = b"gp\x01a"
_MAC_BYTES: Final = 16
_HEAD_BYTES: Final = len(_ANSWER) + _MAC_BYTES
_ALL_JSON: Final = 0xFFFF_FFFF
_SHAPE: Final = Struct(">IH")
_KEY_LENGTH: Final = Struct(">I")


@dataclass(frozen=True, slots=True)
class Claim:
    """Somebody is computing the answer; no two processes have the same `owner`."""

    owner: bytes


def encode(key: bytes, answer: Answer, secret: bytes) -> bytes:
    """The entry of a complete answer of status 200.

    Raises:
        ValueError: an answer that is not of status 200, or whose parts do not fit the layout.
    """
    if answer.status != 200:
        raise ValueError(f"status={answer.status} is not stored; only 200 is")
    content_type = answer.content_type.encode()
    length = answer.header_length
    if len(content_type) > 0xFFFF or not (length is None or 0 <= length < _ALL_JSON):
        raise ValueError("the content type or the JSON part is longer than an entry can say")
    shape = _SHAPE.pack(_ALL_JSON if length is None else length, len(content_type))
    payload = b"".join((shape, content_type, answer.body))
    return b"".join((_ANSWER, _mac(key, _ANSWER, payload, secret), payload))


def encode_claim(key: bytes, owner: bytes, secret: bytes) -> bytes:
    """The entry that says that `owner` is computing the answer."""
    return b"".join((_CLAIM, _mac(key, _CLAIM, owner, secret), owner))


def decode(key: bytes, data: bytes, secret: bytes) -> Answer | Claim | None:
    """What was stored under `key`; None for whatever was not stored there by who has `secret`."""
    kind = data[:4]
    payload = memoryview(data)[_HEAD_BYTES:]
    expected = _mac(key, kind, payload, secret)
    if not hmac.compare_digest(expected, data[4:_HEAD_BYTES]):
        return None
    if kind == _ANSWER:
        json_bytes, type_bytes = _SHAPE.unpack_from(payload)
        body_at = _HEAD_BYTES + _SHAPE.size + type_bytes
        content_type = data[_HEAD_BYTES + _SHAPE.size : body_at].decode()
        header_length = None if json_bytes == _ALL_JSON else json_bytes
        return Answer(200, data[body_at:], header_length, content_type)
    # An authentic entry of a later version is not ours to read.
    return Claim(bytes(payload)) if kind == _CLAIM else None


def _mac(key: bytes, kind: bytes, payload: bytes | memoryview, secret: bytes) -> bytes:
    # The key's length goes first: no other key and payload then give the same bytes.
    head = b"".join((_KEY_LENGTH.pack(len(key)), key, kind))
    mac = blake2b(head, digest_size=_MAC_BYTES, key=secret, person=b"galley entry")
    mac.update(payload)
    return mac.digest()
