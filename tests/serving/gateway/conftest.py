"""A gateway in front of two models, as the tests of this folder render it."""

from dataclasses import replace
from pathlib import Path

import pytest

from serving.gateway.routes import Caller, Endpoint, Gateway, Limits, ModelRoute, Version

FOLDER = Path("/galley/xds")

LIMITS = Limits(
    kind="tensors",
    max_request_bytes=983_040,
    timeout_seconds=5.0,
    per_try_timeout_seconds=1.25,
    idle_timeout_seconds=300.0,
    max_in_flight=24,
    retries_in_flight=12,
    rate_rps=60,
    callers=(Caller("uploads", 40), Caller("scanner", 10)),
)


@pytest.fixture
def limits() -> Limits:
    return LIMITS


@pytest.fixture
def gateway() -> Gateway:
    first, second = (
        Endpoint("127.0.0.1", 12_001, 12_011),
        Endpoint("127.0.0.1", 12_002, 12_012),
    )
    small = replace(LIMITS, max_request_bytes=70_000, callers=(Caller("ads", 500),), rate_rps=2500)
    return Gateway(
        port=12_100,
        inner_port=12_102,
        admin_port=12_101,
        servers=(first, second),
        hops=(Endpoint("127.0.0.1", 12_201), Endpoint("127.0.0.1", 12_202)),
        models=(
            ModelRoute("filetype", LIMITS, (Version(1, "sha256:" + "a" * 64, (first, second)),)),
            ModelRoute("ranker", small, (Version(12, "sha256:" + "b" * 64, (second,)),)),
        ),
    )
