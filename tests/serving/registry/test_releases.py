"""Releases: one writer wins, the others learn the current value, and nothing is forgotten."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from serving.errors import ConflictError, InputError, IntegrityError
from serving.registry import names, registry, releases
from serving.registry.releases import Release, Target
from serving.registry.store import Store

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DIGEST = "sha256:" + "a" * 64
Publish = Callable[[int], Target]


@pytest.fixture
def publish(store: Store, model: str, tmp_path: Path) -> Publish:
    def publish(version: int) -> Target:
        path = tmp_path / f"{version}.onnx"
        path.write_bytes(f"{model} {version}".encode())
        published = registry.push(
            store, model=model, files={"model.onnx": path}, format="onnx", source="test",
            now=NOW, version=version,
        )  # fmt: skip
        return Target(version=version, digest=published.digest)

    return publish


def test_a_release_is_read_back_from_its_bytes() -> None:
    first = Release.first("prod", "ranker", NOW, stable=Target(version=1, digest=DIGEST))
    assert Release.parse(first.to_bytes(), "x") == first
    second = first.changed(NOW, candidate=Target(version=2, digest=DIGEST))
    assert (second.revision, second.stable) == (2, first.stable)
    assert second.to_bytes() != first.to_bytes()
    assert second.changed(NOW, candidate=None).targets == (second.stable,)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[" * 100_000,
        Release.first("prod", "ranker", NOW).to_bytes() + b" ",
        Release.first("prod", "ranker", NOW).to_bytes().replace(b'"revision":1', b'"revision":0'),
        Release.first("prod", "ranker", NOW).to_bytes().replace(b'"ranker"', b'"../x"'),
        Release.first("prod", "ranker", NOW).to_bytes()[:-1] + b',"weights":{}}',
    ],
)
def test_bytes_that_are_no_release_are_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(IntegrityError) as caught:
        Release.parse(data, "releases/prod/ranker.json")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(("environment", "model"), [("../x", "ranker"), ("prod", "Ranker")])
def test_a_bad_name_is_refused(environment: str, model: str) -> None:
    with pytest.raises(InputError):
        Release.first(environment, model, NOW)


@pytest.mark.live
def test_a_release_goes_from_version_to_version(store: Store, model: str, publish: Publish) -> None:
    one, two = publish(1), publish(2)
    assert releases.read(store, "prod", model) is None
    assert releases.history(store, "prod", model) == ()
    first = Release.first("prod", model, NOW, stable=one)
    etag = releases.write(store, first, None)
    assert releases.read(store, "prod", model) == (first, etag)
    second = first.changed(NOW, candidate=two)
    etag = releases.write(store, second, etag)
    third = second.changed(NOW, stable=two, candidate=None)
    etag = releases.write(store, third, etag)
    assert releases.read(store, "prod", model) == (third, etag)
    assert releases.history(store, "prod", model) == (first, second, third), "all in one second"
    assert releases.read(store, "staging", model) is None


@pytest.mark.live
def test_a_stale_write_is_refused_with_the_current_value(
    store: Store, model: str, publish: Publish
) -> None:
    one, two, three = publish(1), publish(2), publish(3)
    first = Release.first("prod", model, NOW, stable=one)
    etag = releases.write(store, first, None)
    winner = first.changed(NOW, stable=two)
    releases.write(store, winner, etag)
    with pytest.raises(ConflictError, match=f"now revision=2 stable=2 .{two.digest}"):
        releases.write(store, first.changed(NOW, stable=three), etag)
    with pytest.raises(ConflictError, match="now revision=2"):
        releases.write(store, Release.first("prod", model, NOW, stable=three), None)
    assert releases.history(store, "prod", model) == (first, winner)


@pytest.mark.live
def test_a_revision_that_does_not_follow_is_refused(
    store: Store, model: str, publish: Publish
) -> None:
    first = Release.first("prod", model, NOW, stable=publish(1))
    etag = releases.write(store, first, None)
    for revision in (1, 3):
        with pytest.raises(ConflictError, match="does not follow 1"):
            releases.write(store, first.model_copy(update={"revision": revision}), etag)


@pytest.mark.live
@pytest.mark.parametrize("begun", [False, True])
def test_of_many_writers_one_wins_each_revision(
    store: Store, model: str, publish: Publish, begun: bool
) -> None:
    targets = [publish(version) for version in range(1, 9)]
    first = Release.first("prod", model, NOW, stable=targets[0])
    etag = releases.write(store, first, None) if begun else None

    def write(target: Target) -> Release | None:
        wanted = (
            first.changed(NOW, stable=target)
            if begun
            else Release.first("prod", model, NOW, stable=target)
        )
        try:
            releases.write(store, wanted, etag)
        except ConflictError:
            return None
        return wanted

    with ThreadPoolExecutor(8) as pool:
        won = [release for release in pool.map(write, targets) if release is not None]
    assert len(won) == 1
    found = releases.read(store, "prod", model)
    assert found is not None
    assert found[0] == won[0]
    assert releases.history(store, "prod", model)[-1] == won[0]


@pytest.mark.live
def test_an_absent_or_incomplete_version_is_refused(
    store: Store, model: str, publish: Publish
) -> None:
    one, two = publish(1), publish(2)
    absent = Target(version=7, digest=DIGEST)
    other = Target(version=2, digest=one.digest)
    for bad, told in ((absent, "has no version 7; it has 1, 2"), (other, "name the digest")):
        for field in ("stable", "candidate"):
            with pytest.raises(InputError, match=told):
                releases.write(store, Release.first("prod", model, NOW, **{field: bad}), None)
    store.delete(names.blob_key(registry.show(store, model, 2).files[0].digest))
    with pytest.raises(InputError, match="2 is incomplete: the bytes of model"):
        releases.write(store, Release.first("prod", model, NOW, stable=two), None)
    assert releases.read(store, "prod", model) is None


@pytest.mark.live
def test_a_rollback_does_not_wait_for_what_it_rolls_back_from(
    store: Store, model: str, publish: Publish
) -> None:
    one, two = publish(1), publish(2)
    both = Release.first("prod", model, NOW, stable=one, candidate=two)
    etag = releases.write(store, both, None)
    store.delete(names.manifest_key(model, 2))
    releases.write(store, both.changed(NOW, candidate=None), etag)


@pytest.mark.live
def test_a_change_whose_writer_died_is_kept_by_the_next(
    store: Store, model: str, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = publish(1), publish(2)
    first = Release.first("prod", model, NOW, stable=one)
    key = names.release_key("prod", model)
    etag = store.create(key, first.to_bytes())  # dead before the copy was made
    assert list(store.list("releases", "prod", model)) == []
    assert releases.history(store, "prod", model) == (first,)
    second = first.changed(NOW, stable=two)
    releases.write(store, second, etag)
    assert list(store.list("releases", "prod", model)) == [
        names.history_key("prod", model, revision) for revision in (1, 2)
    ]


@pytest.mark.live
def test_a_document_of_another_model_is_refused(store: Store, model: str) -> None:
    document = Release.first("prod", "other", NOW)
    store.create(names.release_key("prod", model), document.to_bytes())
    with pytest.raises(IntegrityError, match="is the release of other in prod"):
        releases.read(store, "prod", model)


def test_a_later_field_can_be_added_without_changing_what_is_stored() -> None:
    class Later(Release):
        phase: str | None = None

    stored = Release.first("prod", "ranker", NOW).to_bytes()
    later: Any = Later.parse(stored, "x")
    assert later.phase is None
    assert Later.parse(later.changed(NOW, phase="canary").to_bytes(), "x").phase == "canary"
