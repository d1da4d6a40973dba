"""Server-Sent Events as they come, and what a stream of tokens must have been.

Source: the HTML standard, section 9.2.6; OpenAI's streams end with the event `[DONE]`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from serving.judge.run import NEVER

DONE: Final = b"[DONE]"


class Events:
    r"""Turns pieces of a body into events, wherever the pieces were cut.

    >>> events = Events()
    >>> events.feed(b"data: a\r"), events.feed(b"\n\r\ndata: b\n\nda")
    ([], [b'a', b'b'])
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._after_return = False
        self.failed = False
        """Whether an event was named `error`, whatever it said."""

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of every event that is whole now."""
        if not piece:
            return []
        if self._after_return and piece[:1] == b"\n":
            piece = piece[1:]
        self._after_return = piece[-1:] == b"\r"
        # A line may end in CR, LF or both; a CR at the end of a piece may have its LF in the next.
        lines = (self._rest + piece).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop()
        found = []
        for line in lines:
            if not line:
                if self._data:
                    found.append(b"\n".join(self._data))
                    self._data = []
                continue
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                self._data.append(value)
            elif name == b"event" and value == b"error":
                self.failed = True
        return found


@dataclass
class Tokens:
    """A stream of tokens in OpenAI's form, and the moments at which they came, in ns.

    The first token is the first piece of text: a role or an empty piece is none. A stream is good
    that ends with `[DONE]`, says nothing of an error, and holds a token.
    """

    first: int = NEVER
    last: int = NEVER
    pieces: int = 0
    counted: int | None = None
    done: bool = False
    why: str | None = None
    _events: Events = field(default_factory=Events)

    def feed(self, now: int, piece: bytes) -> None:
        """Take in what came at a moment."""
        for data in self._events.feed(piece):
            self._take(now, data)

    @property
    def tokens(self) -> int:
        """As the server counted them, or pieces of text where it did not."""
        return self.pieces if self.counted is None else self.counted

    @property
    def inter_token(self) -> int:
        """Mean time between tokens in ns; 0 for one token, NEVER for none."""
        if self.first == NEVER:
            return NEVER
        return (self.last - self.first) // max(self.tokens - 1, 1) if self.tokens > 1 else 0

    def fault(self) -> str | None:
        """What was wrong with the stream; None for a good one."""
        if self.why is not None:
            return self.why
        if self._events.failed:
            return "the server sent an event named error"
        if not self.done:
            return "the stream ended without [DONE]"
        return "the stream held no token" if self.first == NEVER else None

    def _take(self, now: int, data: bytes) -> None:
        if data == DONE:
            self.done = True
            return
        if self.done:
            self.why = self.why or "events came after [DONE]"
            return
        try:
            event = orjson.loads(data)
            self._read(now, event)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            self.why = self.why or f"an event cannot be read: {data[:60]!r}"

    def _read(self, now: int, event: dict[str, Any]) -> None:
        if event.get("error"):
            self.why = self.why or f"the server reports an error: {str(event['error'])[:100]}"
        usage = event.get("usage")
        if usage:
            self.counted = int(usage["completion_tokens"])
        for choice in event.get("choices", ()):
            delta = choice.get("delta") or {}
            text = delta.get("content") or delta.get("reasoning_content") or choice.get("text")
            if text:
                self.pieces += 1
                self.last = now
                if self.first == NEVER:
                    self.first = now


def whole_answer(content: bytes) -> tuple[int, str | None]:
    """Tokens of an answer that came at once, and what is wrong with it; None for a good one."""
    try:
        answer = orjson.loads(content)
        choice = answer["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        counted = int(answer["usage"]["completion_tokens"])
    except (ValueError, TypeError, KeyError, IndexError) as error:
        return 0, f"no answer in OpenAI's form: {type(error).__name__}"
    return counted, None if text else "the answer is empty"
