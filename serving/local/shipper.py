"""Ships the local stack's prediction log to its store, as long as the stack runs.

`python -m serving.local.shipper` is what supervisord starts. A store that is down costs no answer:
segments wait in the folder, where the log itself bounds them.
"""

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from serving.environments import LOCAL, local_store
from serving.errors import GalleyError
from serving.gateway.prediction.segments import close_abandoned
from serving.gateway.prediction.shipping import ship
from serving.local.home import Home
from serving.paths import home_folder

if TYPE_CHECKING:
    from serving.registry.store import Store

EVERY_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
LAST_PASS_SECONDS = 2.0
ENDING = (signal.SIGTERM, signal.SIGINT)


def run(folder: Path, open_store: Callable[[], "Store"], ended: Callable[[float], object]) -> None:
    """Ship whatever is closed in `folder` until the end, and once more then.

    `ended` waits for that many seconds or until the end, and says whether the end has come.
    """
    wait, told = EVERY_SECONDS, ""
    while not ended(wait):
        fault = _pass(folder, open_store, lambda: not ended(0))
        wait = min(2 * wait, LONGEST_WAIT_SECONDS) if fault else EVERY_SECONDS
        if fault != told:
            _say(fault or "shipping again")
        told = fault
    if not told:  # a store that was down a moment ago would only hold up the end
        deadline = time.monotonic() + LAST_PASS_SECONDS
        _pass(folder, open_store, lambda: time.monotonic() < deadline)


def _pass(folder: Path, open_store: Callable[[], "Store"], go_on: Callable[[], bool]) -> str:
    """One pass; what went wrong, or nothing."""
    try:
        close_abandoned(folder)
        if any(folder.glob("*.jsonl")):
            done = ship(folder, open_store(), LOCAL, go_on)
            if done.unreadable:
                _say(f"{folder}: {done.unreadable} lines were cut off or damaged, and left out")
    except (GalleyError, OSError) as error:
        return str(error)
    return ""


def _say(text: str) -> None:
    print(f"shipper: {text}", file=sys.stderr, flush=True)  # noqa: T201


class _Signals:
    """The end as supervisord tells it: signals are held back, and looked for between two steps."""

    def __init__(self) -> None:
        self._come = False
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)

    def wait(self, seconds: float) -> bool:
        """Whether one has come, within that time or earlier."""
        self._come = self._come or signal.sigtimedwait(ENDING, seconds) is not None
        return self._come


def main() -> None:
    """Run until SIGTERM or SIGINT."""
    home, signals = Home(home_folder()), _Signals()
    opened: list[Store] = []

    def open_store() -> "Store":
        # One store, and so one client: each would load boto3's description of S3 anew.
        if not opened:
            opened.append(local_store(home))
        return opened[0]

    try:
        run(home.prediction_logs, open_store, signals.wait)
    finally:
        for store in opened:
            store.close()


if __name__ == "__main__":
    main()
