"""`Run`: what was recorded of each request, as columns.

Times are whole nanoseconds since any zero, so that a limit is compared exactly and before anything
is rounded or put in a bucket. Ten million requests take about 250 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from serving.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

NEVER: Final = np.iinfo(np.int64).max
"""The time of what did not happen: not sent (dropped), or still open when watching stopped."""


@dataclass(frozen=True)
class Run:
    """Every request that was due in the measured window; warm-up is not in it.

    Attributes:
        intended: when it was due by the schedule; equal to `sent` where no schedule was kept.
        sent: when it was sent; NEVER for one that was dropped.
        ended: when its answer was complete or it failed; NEVER for one that was still open.
        ok: answered well; a broken stream or a malformed answer is not.
        scheduled: whether `intended` is a schedule, which no answer could hold up.
        observed_until: last moment at which an answer would have been seen.
        first_token: when the first token came; NEVER where none did.
        inter_token: mean time between the tokens of an answer; NEVER where it is not known, 0 for
            an answer of one token.
        service: time from sending to the end by a second clock, where one was kept.
        in_flight: requests that the sender itself counted as open just before this one.

    Raises:
        InputError: if columns differ in length.
    """

    intended: NDArray[np.int64]
    sent: NDArray[np.int64]
    ended: NDArray[np.int64]
    ok: NDArray[np.bool_]
    scheduled: bool
    observed_until: int | None = None
    first_token: NDArray[np.int64] | None = None
    inter_token: NDArray[np.int64] | None = None
    service: NDArray[np.int64] | None = None
    in_flight: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for name in COLUMNS:
            column = getattr(self, name)
            if column is not None and len(column) != len(self.intended):
                raise InputError(
                    f"run: {name} has {len(column)} rows and intended {len(self.intended)}; "
                    "give every column a value for every request"
                )

    def __len__(self) -> int:
        return len(self.intended)

    @property
    def last_seen(self) -> int:
        """The last moment of watching: as given, or the last thing that happened."""
        if self.observed_until is not None:
            return self.observed_until
        seen = [
            int(column[column != NEVER].max(initial=np.iinfo(np.int64).min))
            for column in (self.intended, self.sent, self.ended)
        ]
        return max(seen, default=0)


COLUMNS: Final = tuple(
    field.name for field in fields(Run) if field.name not in ("scheduled", "observed_until")
)


def run_of_seconds(
    intended: Sequence[float] | NDArray[Any],
    ended: Sequence[float] | NDArray[Any],
    ok: Sequence[bool] | NDArray[Any] | None = None,
    sent: Sequence[float] | NDArray[Any] | None = None,
) -> Run:
    """A run from times in seconds; what is not given went as it should."""
    due, end = _nanoseconds(intended), _nanoseconds(ended)
    return Run(
        intended=due,
        sent=due if sent is None else _nanoseconds(sent),
        ended=end,
        ok=np.ones(len(due), dtype=bool) if ok is None else np.asarray(ok, dtype=bool),
        scheduled=True,
    )


def _nanoseconds(seconds: Sequence[float] | NDArray[Any]) -> NDArray[np.int64]:
    values = np.asarray(seconds, dtype=np.float64)
    if np.isnan(values).any():
        raise InputError("run: a time is NaN; give a number of seconds, inf for what never came")
    out = np.full(len(values), NEVER, dtype=np.int64)
    known = np.isfinite(values)
    out[known] = np.rint(values[known] * 1e9).astype(np.int64)
    return out


def merged(parts: Sequence[Run]) -> Run:
    """The whole that the workers of one run recorded; their clocks must agree.

    Raises:
        InputError: for no parts, or parts of which only some have a column.
    """
    if not parts:
        raise InputError("run: there are no parts to merge; record at least one")
    columns: dict[str, Any] = {}
    for name in COLUMNS:
        held = [getattr(part, name) for part in parts]
        if any(column is None for column in held) and any(column is not None for column in held):
            raise InputError(f"run: only some parts have {name}; record it everywhere or nowhere")
        columns[name] = None if held[0] is None else np.concatenate(held)
    return Run(
        scheduled=all(part.scheduled for part in parts),
        observed_until=max(part.last_seen for part in parts),
        **columns,
    )


def in_flight_at(
    moments: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    """How many requests were open just before each of `moments`, sorted like `moments`.

    >>> at = np.array([0, 1, 2, 5])
    >>> in_flight_at(at, starts=at, ends=np.array([2, 4, 3, 9])).tolist()
    [0, 1, 1, 0]
    """
    begun = np.searchsorted(np.sort(starts), moments, side="left")
    done = np.searchsorted(np.sort(ends), moments, side="right")
    return np.asarray(np.maximum(begun - done, 0), dtype=np.int64)
