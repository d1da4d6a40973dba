"""Keeping what was measured with the version that it was measured on."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtest.report.report import as_text
from serving.environments import open_store
from serving.judge.stored import as_text as stored
from serving.registry import evidence

if TYPE_CHECKING:
    from loadtest.concluding import Concluded
    from loadtest.job import Job
    from serving.registry.store import Store


def keep(found: Concluded) -> str | None:
    """Keep a load test; where it is. None where nobody knows which version answered."""
    job = found.run.job
    said = {"report": as_text(found.report), "evidence": stored(found.evidence)}
    return keep_about(
        job,
        "loadtest",
        verdict=found.verdict.answer.value,
        rate_rps=round(found.evidence.offered_rps, 3),
        said=said,
    )


def keep_about(job: Job, kind: evidence.Kind, **fields: Any) -> str | None:
    """Keep a measurement about the version that a job is for."""
    if job.version is None or job.digest is None:
        return None
    limits = {one.name: one.limit_ms or one.allowed_ratio for one in job.objectives}
    made = evidence.evidence(
        kind,
        job.spec.name,
        job.version,
        datetime.now(UTC),
        digest=job.digest,
        environment=job.environment,
        slo=limits,
        alpha=job.alpha,
        **fields,
    )
    return evidence.write(store_of(job), made)


def store_of(job: Job) -> Store:
    """The registry of the environment that a job is for.

    Raises:
        InputError: it has none.
    """
    if job.home is None:
        return open_store(job.environment)
    from serving.environments import local_store
    from serving.local.home import Home

    return local_store(Home(Path(job.home)))
