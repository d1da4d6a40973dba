"""Runs that were never made: jobs, and rows as a generator would have written them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loadtest import account
from loadtest.account import Account, Part
from loadtest.folders import new_run
from loadtest.job import Job
from loadtest.records import ROW
from loadtest.workload import Workload, workload_of
from serving.judge.run import NEVER
from serving.paths import SPECS
from serving.publish import spec_of

MS = 1_000_000


def job_of(model: str = "filetype", workload: str | Workload = "steady", **fields: Any) -> Job:
    """A job for a server that is not there."""
    chosen = workload_of(workload) if isinstance(workload, str) else workload
    known: dict[str, Any] = {
        "spec": spec_of(model, SPECS),
        "workload": chosen,
        "url": "http://127.0.0.1:9",
        "environment": "test",
        "seed": 1,
        "peak_rps": 40.0,
        "seconds": 100.0,
        "exact": True,
    }
    return Job(**(known | fields))


def rows_of(job: Job, service_ms: float | np.ndarray[Any, Any] = 20.0, lag_ms: float = 0.1) -> Any:
    """Every request of the job, answered well; service times in ms, one or one for each."""
    intended = job.schedule.intended
    rows = np.zeros(len(intended), dtype=ROW)
    rows["position"] = np.arange(len(intended))
    rows["intended"] = intended
    rows["sent"] = intended + round(lag_ms * MS)
    took = np.broadcast_to(np.asarray(service_ms), len(intended))
    rows["ended"] = rows["sent"] + np.rint(took * MS).astype(np.int64)
    rows["first"] = rows["inter_token"] = NEVER
    rows["status"], rows["ok"] = 200, 1
    return rows


def account_of(rows: Any, job: Job, **fields: Any) -> Account:
    """What a generator of one worker that was well says of these rows."""
    known: dict[str, Any] = {
        "worker": 0,
        "recorded": len(rows),
        "schedule_digest": job.schedule.digest,
        "cpu_ratio": 0.1,
        "loop_lag_p99_ms": 0.2,
    }
    lasted = job.schedule.until / 1e9 + 5
    return Account(1000.0, 1000.0 + lasted, 1, (Part(**(known | fields)),), ())


def kept(folder: Path, job: Job, rows: Any, made: Account | None = None, **said: Any) -> Path:
    """The folder of such a run."""
    new_run(job, folder)
    (folder / account.RECORDS).write_bytes(np.asarray(rows).tobytes())
    account.write(folder, made or account_of(rows, job, **said))
    return folder


def bad(rows: Any, places: Any, status: int, **values: Any) -> Any:
    """The same rows, with some that were not answered well."""
    found = rows.copy()
    found["status"][places] = status
    found["ok"][places] = 0
    for name, value in values.items():
        found[name][places] = value
    return found


def fields(**values: Any) -> Mapping[str, Any]:
    """Keyword arguments."""
    return values
