"""Bodies that were answered from the cache before: what they ask need not be read again.

Reading a request costs more than everything else that a hit takes, and what is asked often enough
to be a hit is mostly asked with the same bytes. What those bytes came to is remembered here. It is
a function of the bytes and of the version that they are for, so that it cannot go stale. Requests
with an id are not for here: another id makes other bytes, and few ids come twice.
"""

from collections import OrderedDict
from hashlib import sha256
from typing import Final, NamedTuple

from serving.gateway.prediction.schema import Served

MOST_KNOWN: Final = 4096
LARGEST_BODY_BYTES: Final = 64 * 1024
"""Larger bodies are read each time: they are seldom asked twice, and cost much beside this."""

Name = tuple[str, str, str | None, str | None, bytes]


class Known(NamedTuple):
    """What a body without an id came to: the key of its answer."""

    served: Served
    key: bytes


class KnownBodies:
    """The last few bodies that were hits, by their digest alone."""

    def __init__(self, most: int = MOST_KNOWN) -> None:
        self._most = most
        # A plain dict finds its first key slowly once many before it are gone.
        self._known: OrderedDict[Name, Known] = OrderedDict()

    def get(self, name: Name, served: Served) -> Known | None:
        """What is known of a body for a version, as that version is served now."""
        known = self._known.get(name)
        return known if known is not None and known.served is served else None

    def add(self, name: Name, known: Known) -> None:
        """Remember a body; the one that was added first makes room."""
        if name not in self._known and len(self._known) >= self._most:
            self._known.popitem(last=False)
        self._known[name] = known

    def __len__(self) -> int:
        return len(self._known)


def name_of(
    served: Served, version: str, client: str | None, header_length: str | None, body: bytes
) -> Name | None:
    """Everything that the key of an answer is made of; None where that is too much to look at.

    `client` is given where clients do not share answers.
    """
    if len(body) > LARGEST_BODY_BYTES:
        return None
    digest = sha256(body).digest()
    return served.digest, version, client, header_length, digest
