"""`Rows`: requests as they are read, eight bytes a value, so that ten million fit in memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from serving.judge.run import COLUMNS, NEVER, Run

ALWAYS: Final = ("intended", "sent", "ended")
OPTIONAL: Final = ("first_token", "inter_token", "service", "in_flight")


@dataclass(frozen=True)
class Recording:
    """A log that was read: the run, the format it was in, and what to tell about it."""

    run: Run
    format: str
    notes: tuple[str, ...] = ()


class Rows:
    """Columns that grow; of the optional ones only those that the log has."""

    def __init__(self, optional: Iterable[str] = ()) -> None:
        asked = set(optional)
        self.names = (*ALWAYS, *(name for name in OPTIONAL if name in asked))
        self.columns = {name: array("q") for name in self.names}
        self.ok = bytearray()

    def __len__(self) -> int:
        return len(self.ok)

    def add(self, ok: bool, intended: int, sent: int, ended: int, *optional: int) -> None:
        """One request; optional values in the order of `names`."""
        for name, value in zip(self.names, (intended, sent, ended, *optional), strict=True):
            self.columns[name].append(value)
        self.ok.append(ok)

    def extend(self, ok: Sequence[bool], columns: Mapping[str, Sequence[int]]) -> None:
        """Many requests, column by column."""
        for name in self.names:
            self.columns[name].extend(columns[name])
        self.ok.extend(ok)

    def run(self, *, scheduled: bool) -> Run:
        """The run that the rows make up."""
        held: dict[str, Any] = {
            name: np.frombuffer(column, dtype=np.int64)
            if len(column)
            else np.empty(0, dtype=np.int64)
            for name, column in self.columns.items()
        }
        return Run(
            ok=np.frombuffer(self.ok, dtype=np.bool_) if self.ok else np.empty(0, dtype=np.bool_),
            scheduled=scheduled,
            **held,
        )


def after_warmup(run: Run, warmup_seconds: float) -> Run:
    """The run without what was due in its first seconds."""
    if not warmup_seconds > 0 or not len(run):
        return run
    kept = run.intended >= run.intended.min() + round(warmup_seconds * 1e9)
    held = {name: getattr(run, name) for name in COLUMNS if getattr(run, name) is not None}
    return replace(run, **{name: column[kept] for name, column in held.items()})


def on_schedule(run: Run, rate_rps: float) -> Run:
    """The run with intended times of a constant rate, for tools that keep to one and do not log it.

    The schedule is laid as late as no request was sent before it was due. A wrong rate shows as
    requests that were sent late, and the measurement is INVALID.
    """
    order = np.argsort(run.sent, kind="stable")
    sent = run.sent[order]
    place = np.rint(np.arange(len(run)) * (1e9 / rate_rps)).astype(np.int64)
    was_sent = sent != NEVER
    start = int((sent - place)[was_sent].min()) if was_sent.any() else 0
    due = np.empty_like(sent)
    due[order] = start + place
    return replace(run, intended=due, scheduled=True)
