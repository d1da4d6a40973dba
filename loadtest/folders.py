"""Where runs are kept."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from loadtest import account
from serving.paths import ROOT

if TYPE_CHECKING:
    from loadtest.job import Job


def runs_folder() -> Path:
    """Folder of all runs: `GALLEY_RUNS`, or `.galley-runs` in the checkout."""
    return Path(os.environ.get("GALLEY_RUNS", ROOT / ".galley-runs")).absolute()


def new_run(job: Job, folder: Path | None = None, now: datetime | None = None) -> Path:
    """A folder for a run, with its job in it; one of its own unless `folder` is given."""
    if folder is None:
        moment = (now or datetime.now(UTC)).strftime("%Y%m%d-%H%M%S")
        name = f"{moment}-{job.spec.name}-{job.workload.name}"
        folder = runs_folder() / name
        count = 1
        while folder.exists():
            count += 1
            folder = runs_folder() / f"{name}-{count}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / account.JOB).write_text(job.as_text() + "\n", encoding="utf-8")
    return folder
