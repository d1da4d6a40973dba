"""Asking for chats and completions in OpenAI's form, streamed or at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadtest.engine.open_loop import Answered
from loadtest.records import BROKEN, MALFORMED
from loadtest.sse import Tokens, whole_answer
from serving.judge.run import NEVER

if TYPE_CHECKING:
    from loadtest.engine.connection import Connection, Response
    from loadtest.payloads.chat import Prompts


class OpenAiAsker:
    """One user's questions to a model that answers token by token.

    Args:
        connection: the user's own.
        prompts: what is asked, shared by all users of a worker.
    """

    method = "POST"

    def __init__(self, connection: Connection, prompts: Prompts) -> None:
        self.name = prompts.path
        self._connection, self._prompts = connection, prompts

    def ask(self, position: int) -> Answered:
        """Send the request of this place in the schedule, and wait for its last token."""
        prompts = self._prompts
        body = prompts.body(position)
        if not prompts.stream:
            found = self._connection.ask(prompts.path, body, prompts.headers)
            return _at_once(found)
        tokens = Tokens()
        size = 0

        def take(now: int, piece: bytes) -> None:
            nonlocal size
            size += len(piece)
            tokens.feed(now, piece)

        found = self._connection.ask(prompts.path, body, prompts.headers, take)
        return _streamed(found, tokens, size)


def _streamed(found: Response, tokens: Tokens, size: int) -> Answered:
    why, status = found.error, found.status
    if why is None and status != 200:
        why = f"status {status}"
    elif why is None:
        why = tokens.fault()
        status = BROKEN if why is not None else status
    return Answered(
        found.sent,
        found.ended,
        status,
        why,
        first=tokens.first,
        inter_token=tokens.inter_token,
        tokens=tokens.tokens,
        size_bytes=size,
    )


def _at_once(found: Response) -> Answered:
    if found.error is not None or found.status != 200:
        return Answered(
            found.sent, found.ended, found.status, found.error or f"status {found.status}"
        )
    tokens, why = whole_answer(found.content)
    return Answered(
        found.sent,
        found.ended,
        200 if why is None else MALFORMED,
        why,
        # All tokens come at once: the first with the last.
        first=found.ended if why is None else NEVER,
        inter_token=0 if why is None else NEVER,
        tokens=tokens,
        size_bytes=len(found.content),
    )
