"""A plan reckons with what was measured of a release, and does without where nothing was."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from serving.capacity import measured
from serving.capacity.batching import curve_of
from serving.capacity.known import Known
from serving.capacity.measured import Maximum, with_evidence
from serving.capacity.plan import Settings, plan_model
from serving.errors import StackError, StoreError
from serving.paths import SPECS
from serving.publish import spec_of
from serving.registry import evidence
from serving.registry.releases import Release, Target

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DIGEST = "sha256:" + "a" * 64
RANKER = spec_of("ranker", SPECS)


class Shelf:
    """A registry of a few documents, as `Store` answers about them."""

    def __init__(self, *documents: tuple[str, bytes]) -> None:
        self.documents = dict(documents)

    def get(self, key: str) -> tuple[bytes, str] | None:
        found = self.documents.get(key)
        return None if found is None else (found, "etag")

    def list(self, *folders: str) -> list[str]:
        prefix = "/".join(folders) + "/"
        return [key for key in self.documents if key.startswith(prefix)]


def kept(kind: Any, digest: str = DIGEST, **fields: Any) -> tuple[str, bytes]:
    one = evidence.evidence(kind, "ranker", 1, NOW, digest=digest, environment="local", **fields)
    return evidence.key_of(one), one.to_bytes()


RELEASE = Release.first("local", "ranker", NOW, stable=Target(version=1, digest=DIGEST))
RELEASED = ("releases/local/ranker.json", RELEASE.to_bytes())
CURVE = kept("batch-curve", said={"curve": json.dumps({"1": 3.0, "16": 4.0})})
MAXIMUM = kept("maximum", rate_rps=300.0, said={"maximum": json.dumps({"replicas": 2})})


def found_in(monkeypatch: pytest.MonkeyPatch, *documents: tuple[str, bytes]) -> Known:
    monkeypatch.setattr("serving.environments.open_store", lambda _: Shelf(*documents))
    return with_evidence("local", {"ranker": Known()})["ranker"]


def test_the_curve_and_the_rate_of_the_released_digest_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = found_in(monkeypatch, RELEASED, CURVE, MAXIMUM)
    assert found.curve is not None
    assert [(point.batch, point.ms) for point in found.curve.points] == [(1, 3.0), (16, 4.0)]
    assert "evidence of 2026-01-02" in found.curve.source
    assert found.maximum is not None
    assert found.maximum.per_replica_rps == 150.0


def test_evidence_about_another_digest_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    other = kept("batch-curve", "sha256:" + "b" * 64, said={"curve": json.dumps({"1": 3.0})})
    assert found_in(monkeypatch, RELEASED, other) == Known()


def test_a_file_goes_before_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.environments.open_store", lambda _: Shelf(RELEASED, CURVE))
    own = Known(curve=curve_of({1: 9.0}, "a file"))
    assert with_evidence("local", {"ranker": own})["ranker"].curve == own.curve


@pytest.mark.parametrize("documents", [(), (RELEASED,), (RELEASED, (CURVE[0], b"{}"))])
def test_a_plan_goes_without_what_is_not_there_or_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, documents: tuple[tuple[str, bytes], ...]
) -> None:
    assert found_in(monkeypatch, *documents) == Known()


@pytest.mark.parametrize("error", [StackError("no stack"), StoreError("is down")])
def test_a_plan_goes_without_a_registry(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fails(_: str) -> None:
        raise error

    monkeypatch.setattr("serving.environments.open_store", fails)
    assert with_evidence("local", {"ranker": Known()}) == {"ranker": Known()}
    assert measured._store("local") is None


def test_replicas_are_enough_for_what_each_was_shown_to_bear() -> None:
    shown = Known(maximum=Maximum(300.0, 2, "evidence of today, version 1"))
    plan = plan_model(RANKER, shown, Settings())
    assert plan.replicas == 17
    assert any("shown to keep its SLO at 300 rps on 2 replicas" in text for text in plan.sums)
    assert plan_model(RANKER, Known(), Settings()).replicas == 7
