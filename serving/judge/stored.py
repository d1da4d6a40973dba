"""Evidence and a canary's state as JSON text, to be kept and judged again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from serving.errors import IntegrityError
from serving.judge.canary import State
from serving.judge.evidence import Evidence

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T", Evidence, State)


def as_text(value: Evidence | State) -> str:
    """One line of JSON that `evidence_from` or `state_from` reads back to an equal value."""
    return _adapter(type(value)).dump_json(value).decode()


def evidence_from(text: str) -> Evidence:
    """Stored evidence.

    Raises:
        IntegrityError: if the text is not what was written.
    """
    return _read(Evidence, text)


def state_from(text: str) -> State:
    """The stored state of a canary.

    Raises:
        IntegrityError: if the text is not what was written.
    """
    return _read(State, text)


def _read(kind: type[T], text: str) -> T:
    from pydantic import ValidationError

    try:
        found: T = _adapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "text"
        raise IntegrityError(
            f"stored {kind.__name__.lower()}: {place}={first['input']!r:.60} cannot be read "
            f"({first['msg']}); take it from where it was written"
        ) from None
    # Read leniently a field that is missing would be zero, and evidence lost.
    if json.loads(as_text(found)) != json.loads(text):
        raise IntegrityError(
            f"stored {kind.__name__.lower()}: fields are missing or too many; take it from where "
            "it was written"
        )
    return found


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
