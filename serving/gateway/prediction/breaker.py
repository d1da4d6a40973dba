"""Stops asking a server that let several commands in a row wait, and tries it again later."""

from collections.abc import Callable
from time import monotonic
from typing import Final

STRIKES: Final = 3
REST_SECONDS: Final = 1.0


class Breaker:
    """Open from `STRIKES` timeouts in a row until an answer; one try each `REST_SECONDS`."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._strikes = 0
        self._try_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether commands are held back."""
        return self._strikes >= STRIKES

    def try_once(self) -> bool:
        """Whether a command may be sent although it is open: a yes is for one command."""
        now = self._clock()
        if now < self._try_at:
            return False
        self._try_at = now + REST_SECONDS
        return True

    def answered(self) -> None:
        """Close: the server answers."""
        self._strikes = 0

    def timed_out(self) -> None:
        """Count a timeout; open at the last one allowed."""
        self._strikes += 1
        self._try_at = self._clock() + REST_SECONDS
