"""Records to log, and the S3 server that the registry's tests start."""

from collections.abc import Callable
from typing import Any

import pytest

from serving.gateway.prediction.record import Record
from tests.serving.registry.conftest import s3_server, store

__all__ = ["s3_server", "store"]

NOON = 1_796_126_400.0  # 2026-12-01T12:00:00Z


@pytest.fixture
def make_record() -> Callable[..., Record]:
    """Makes an answer of noon on 2026-12-01, with changes."""

    def make(**changes: Any) -> Record:
        stated: dict[str, Any] = {
            "time": NOON,
            "request_id": "r-1",
            "client": "uploads",
            "model": "ranker",
            "version": 3,
            "digest": "sha256:" + "a" * 64,
            "cache": "miss",
            "status": 200,
            "queue_ms": 0.25,
            "compute_ms": 3.5,
            "total_ms": 4.0,
            "request_bytes": 120,
            "response_bytes": 80,
        }
        return Record(**stated | changes)

    return make
