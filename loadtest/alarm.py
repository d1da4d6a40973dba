"""A timer as exact as the kernel's, for event loops whose own timers tick in milliseconds."""

import ctypes
import os
import time
from typing import Final

_MONOTONIC: Final = time.CLOCK_MONOTONIC
_ABSOLUTE: Final = 1


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


_libc = ctypes.CDLL(None, use_errno=True)


class Alarm:
    """Makes its descriptor readable at a time of the monotonic clock (timerfd_create(2))."""

    def __init__(self) -> None:
        self.descriptor: int = _libc.timerfd_create(_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "no timer")

    def ring_at(self, moment: float) -> None:
        """Ring at that moment, or at once where it is over."""
        nanoseconds = max(int(moment * 1e9), 1)
        spec = _TimerSpec(_TimeSpec(0, 0), _TimeSpec(*divmod(nanoseconds, 1_000_000_000)))
        _libc.timerfd_settime(self.descriptor, _ABSOLUTE, ctypes.byref(spec), None)

    def heard(self) -> None:
        """Be silent until it rings again."""
        try:
            os.read(self.descriptor, 8)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Let go of the timer."""
        os.close(self.descriptor)
