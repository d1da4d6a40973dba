"""A gateway in front of two models, as the tests of this folder render it."""

from pathlib import Path

import pytest

from serving.gateway.routes import Endpoint, Gateway, ModelRoute

FOLDER = Path("/galley/xds")


@pytest.fixture
def gateway() -> Gateway:
    first, second = Endpoint("127.0.0.1", 12_001), Endpoint("127.0.0.1", 12_002)
    return Gateway(
        port=12_100,
        admin_port=12_101,
        servers=(first, second),
        models=(
            ModelRoute("filetype", 1, "sha256:" + "a" * 64, 983_040, 30.0, (first, second)),
            ModelRoute("ranker", 12, "sha256:" + "b" * 64, 70_000, 30.0, (second,)),
        ),
    )
