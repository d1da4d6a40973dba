"""Evidence is kept for good, beside the version and digest that it is about."""

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from serving.errors import IntegrityError
from serving.registry import evidence
from serving.registry.evidence import Evidence
from serving.registry.store import Store

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DIGEST, OTHER = ("sha256:" + letter * 64 for letter in "ab")


def made(model: str = "ranker", later: int = 0, **fields: Any) -> Evidence:
    known: dict[str, Any] = {
        "kind": "loadtest",
        "digest": DIGEST,
        "environment": "local",
        "verdict": "PASS",
        "rate_rps": 40.0,
        "slo": {"latency_p99_ms": 50.0},
        "alpha": 0.05,
        "said": {"report": '{"a": null}'},
    } | fields
    kind = known.pop("kind")
    return evidence.evidence(kind, model, 1, NOW + timedelta(seconds=later), **known)


def test_it_is_read_back_from_its_bytes_with_every_null_in_it() -> None:
    one = made()
    again = Evidence.parse(one.to_bytes(), "x")
    assert again == one
    assert again.said["report"] == '{"a": null}'


def test_what_is_kept_comes_back_oldest_first_and_the_newest_by_kind(
    store: Store, model: str
) -> None:
    kept = [
        made(model),
        made(model, 5, kind="maximum", rate_rps=180.0),
        made(model, 9, verdict="FAIL"),
    ]
    for one in reversed(kept):
        evidence.write(store, one)
    assert evidence.read_all(store, model, 1) == tuple(kept)
    assert evidence.newest(store, model, 1, "loadtest") == kept[2]
    assert evidence.newest(store, model, 1, "maximum") == kept[1]
    assert evidence.newest(store, model, 1, "batch-curve") is None
    assert evidence.read_all(store, model, 2) == ()


def test_evidence_about_other_bytes_of_the_same_number_is_none(store: Store, model: str) -> None:
    evidence.write(store, made(model, digest=OTHER))
    assert evidence.newest(store, model, 1, "loadtest", DIGEST) is None
    assert evidence.newest(store, model, 1, "loadtest", OTHER) is not None


def test_kept_twice_it_is_there_once(store: Store, model: str) -> None:
    one = made(model)
    assert evidence.write(store, one) == evidence.write(store, one)
    assert len(evidence.read_all(store, model, 1)) == 1


def test_what_was_changed_in_the_store_is_noticed(store: Store, model: str) -> None:
    one = made(model, verdict="FAIL")
    key = evidence.write(store, one)
    found = store.get(key)
    assert found is not None
    store.swap(key, found[0].replace(b"FAIL", b"PASS"), found[1])
    with pytest.raises(IntegrityError, match="not what was written"):
        evidence.read_all(store, model, 1)


@pytest.mark.parametrize("field", ["model", "environment", "digest", "kind"])
def test_a_bad_name_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        made(**cast(Any, {field: "../x"}))
