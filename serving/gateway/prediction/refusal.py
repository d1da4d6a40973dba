"""A request that is not passed on, and the sentence that tells its sender why."""

from typing import Final

MAX_SHOWN_CHARACTERS: Final = 100


class Refusal(Exception):
    """A request that breaks a rule: the HTTP `status`, and a `message` without tensor values."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


def shown(name: object) -> str:
    r"""A name that a caller chose, as a sentence may repeat it: short, printable, on one line.

    >>> shown("in\nput")
    'in?put'
    """
    if not isinstance(name, str):
        return "(not a string)"
    short = name[:MAX_SHOWN_CHARACTERS]
    printable = "".join(letter if letter.isprintable() else "?" for letter in short)
    return printable if len(name) == len(short) else f"{printable}..."
