"""Which way of asking a workload takes; a table from its kind of request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from loadtest.engine.connection import Connection
    from loadtest.engine.open_loop import Answered
    from loadtest.job import Job


class Asker(Protocol):
    """One user's way of asking; `method` and `name` are what Locust's tables call it."""

    method: str
    name: str

    def ask(self, position: int) -> Answered:
        """Send the request of this place in the schedule, and wait for its answer."""


AskerOf = Callable[["Connection"], Asker]
"""Makes an asker for a user from the user's own connection."""


def _triton_http(job: Job) -> AskerOf:
    from loadtest.engine.users.http import HttpAsker
    from loadtest.payloads.triton import TensorBodies

    bodies = TensorBodies(job)
    return lambda connection: HttpAsker(connection, bodies)


def _triton_grpc(job: Job) -> AskerOf:
    from loadtest.engine.users.grpc import GrpcAsker, calls_of

    calls = calls_of(job)
    return lambda _: GrpcAsker(calls)


def _openai(job: Job) -> AskerOf:
    from loadtest.engine.users.openai import OpenAiAsker
    from loadtest.payloads.chat import Prompts

    prompts = Prompts(job)
    return lambda connection: OpenAiAsker(connection, prompts)


ASKERS: dict[str, Callable[[Job], AskerOf]] = {
    "triton_http": _triton_http,
    "triton_grpc": _triton_grpc,
    "chat": _openai,
    "completions": _openai,
}


def askers_of(job: Job) -> AskerOf:
    """Everything that the users of a worker share is made once, here; it may take a second."""
    return ASKERS[job.workload.request.kind](job)
