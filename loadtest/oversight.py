"""`Oversight`: what whoever followed a run knows of it besides the generator's own account."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from loadtest.server_stats import Sample
from serving.errors import InputError

FILE: Final = "oversight.json"


@dataclass(frozen=True, slots=True)
class Oversight:
    """Kept with the run, so that its report can be made again.

    Attributes:
        broken_off_at: only what was due before counts, ns after the start; None for all.
        decided_early: whether a PASS could end it too, so that it is judged as looked at any time.
        calibrated_rps: rate up to which the generator is to be believed; None where not measured.
        samples: what the servers said, second by second.
        restarts: how often one was seen to begin anew; None where nobody looked.
    """

    broken_off_at: int | None = None
    decided_early: bool = False
    calibrated_rps: float | None = None
    samples: tuple[Sample, ...] = ()
    restarts: int | None = None


def write(folder: Path, oversight: Oversight) -> None:
    """Keep it in the run's folder."""
    text = TypeAdapter(Oversight).dump_json(oversight, indent=2)
    (folder / FILE).write_bytes(text)


def read(folder: Path) -> Oversight:
    """What is kept; of a run that nobody followed, nothing.

    Raises:
        InputError: it cannot be read.
    """
    path = folder / FILE
    try:
        return TypeAdapter(Oversight).validate_json(path.read_bytes())
    except FileNotFoundError:
        return Oversight()
    except ValidationError as error:
        raise InputError(f"{path}: cannot be read ({error}); run the load test again") from None
