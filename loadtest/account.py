"""`Account`: what the generator says of a run besides its rows; and the files of a run's folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from serving.errors import InputError

JOB: Final = "job.json"
RECORDS: Final = "requests.bin"
REQUESTS_CSV: Final = "requests.csv"
ACCOUNT: Final = "generator.json"
REPORT_JSON: Final = "report.json"
REPORT_PAGE: Final = "report.html"
REPORT_MARKDOWN: Final = "report.md"
STOP: Final = "stop"
"""A file of this name in a run's folder breaks the run off."""
LOG: Final = "locust.log"


@dataclass(frozen=True, slots=True)
class Part:
    """What one worker says of itself."""

    worker: int
    recorded: int
    schedule_digest: str
    cpu_ratio: float | None
    loop_lag_p99_ms: float | None


@dataclass(frozen=True, slots=True)
class Account:
    """What all of them say. `lost` are workers that never reported their end."""

    started_unix: float
    ended_unix: float
    workers: int
    parts: tuple[Part, ...]
    lost: tuple[int, ...]


def write(folder: Path, account: Account) -> None:
    """Keep it with the run; it is there whole or not at all."""
    from pydantic import TypeAdapter

    path = folder / ACCOUNT
    half = path.with_suffix(".half")
    half.write_bytes(TypeAdapter(Account).dump_json(account, indent=2))
    half.replace(path)


def read(folder: Path) -> Account | None:
    """The account of a run; None where the generator ended without giving one.

    Raises:
        InputError: it is there and cannot be read.
    """
    from pydantic import TypeAdapter, ValidationError

    path = folder / ACCOUNT
    try:
        return TypeAdapter(Account).validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise InputError(f"{path}: is no account of a load test ({error}); run it again") from None
