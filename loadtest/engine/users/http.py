"""Asking Triton over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadtest.engine.open_loop import Answered
from loadtest.payloads.triton import TensorBodies
from loadtest.records import MALFORMED

CACHE = b"x-galley-cache"

if TYPE_CHECKING:
    from loadtest.engine.connection import Connection


class HttpAsker:
    """One user's questions to a model server that answers each at once.

    Args:
        connection: the user's own.
        bodies: what is asked, shared by all users of a worker.
    """

    method = "POST"

    def __init__(self, connection: Connection, bodies: TensorBodies) -> None:
        self.name = bodies.path
        self._connection, self._bodies = connection, bodies

    def ask(self, position: int) -> Answered:
        """Send the request of this place in the schedule, and wait for its answer."""
        bodies = self._bodies
        found = self._connection.ask(bodies.path, bodies.body(position), bodies.headers)
        if found.error is not None:
            return Answered(found.sent, found.ended, found.status, found.error)
        why = bodies.fault(found.status, found.headers, found.content)
        status = MALFORMED if why is not None and found.status == 200 else found.status
        return Answered(
            found.sent,
            found.ended,
            status,
            why,
            size_bytes=len(found.content),
            cached=found.headers.get(CACHE) == b"hit",
        )
