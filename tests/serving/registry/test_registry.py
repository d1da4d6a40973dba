"""Push and pull against a real store: one winner, nothing half-made, nothing taken on trust."""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from serving.errors import (
    ArtifactError,
    ConflictError,
    GalleyError,
    InfrastructureError,
    InputError,
    IntegrityError,
    StoreError,
)
from serving.registry import names, registry
from serving.registry.manifest import Manifest
from serving.registry.registry import Published
from serving.registry.store import Store

pytestmark = pytest.mark.live

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PART = 5 * 1024 * 1024
ROOT = Path(__file__).parents[3]
Keys = tuple[Path, Path]
Push = Callable[..., Published]


@pytest.fixture
def push(store: Store, model: str, tmp_path: Path) -> Push:
    """Pushes files given by their content, `model.onnx` if it is one."""

    def push(content: bytes | dict[str, bytes], **options: Any) -> Published:
        contents = content if isinstance(content, dict) else {"model.onnx": content}
        files = {}
        for number, (path, data) in enumerate(contents.items()):
            files[path] = tmp_path / f"source-{os.urandom(4).hex()}-{number}"
            files[path].write_bytes(data)
        defaults: dict[str, Any] = {"model": model, "format": "onnx", "source": "test", "now": NOW}
        return registry.push(store, files=files, **(defaults | options))

    return push


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "pulled" / "3"


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def damage(store: Store, digest: str, change: Callable[[bytes], bytes]) -> None:
    """What a bad disk or a bad neighbour does to a blob."""
    found = store.get(names.blob_key(digest))
    assert found is not None
    store.swap(names.blob_key(digest), change(found[0]), found[1])


def test_a_pushed_version_comes_back_byte_for_byte(
    store: Store, push: Push, model: str, target: Path
) -> None:
    content = {"model.onnx": b"\x08\x0a one", "weights/0.bin": os.urandom(100_000), "empty": b""}
    told: list[int] = []
    published = push(content, version=3, source="commit 12", progress=told.append)
    assert (published.version, published.created) == (3, True)
    assert sum(told) == sum(map(len, content.values()))
    got: list[int] = []
    manifest = registry.pull(store, model=model, version=3, target=target, progress=got.append)
    assert tree(target) == content
    assert sum(got) == manifest.size_bytes == sum(told)
    assert manifest.digest == published.digest
    assert (manifest.source, manifest.created) == ("commit 12", "2026-01-02T03:04:05Z")
    assert manifest == registry.show(store, model, 3)


def test_the_next_number_is_taken_and_the_same_bytes_are_the_same_version(push: Push) -> None:
    first = push(b"one")
    assert (first.version, first.created) == (1, True)
    again = push(b"one", source="elsewhere", now=datetime(2030, 1, 1, tzinfo=UTC))
    assert again == replace(first, created=False, uploaded_bytes=0)
    second = push(b"two")
    assert (second.version, second.created) == (2, True)
    back = push(b"one")
    assert (back.version, back.created, back.uploaded_bytes) == (3, True, 0), "blobs are shared"
    assert back.digest == first.digest


def test_pushing_a_version_twice_rewrites_nothing(store: Store, push: Push, model: str) -> None:
    push(b"one", version=5)
    key = names.manifest_key(model, 5)
    before = store.client.head_object(Bucket=store.config.bucket, Key=key)
    written = store.get(key)
    again = push(b"one", version=5, source="elsewhere")
    assert (again.created, again.uploaded_bytes) == (False, 0)
    assert store.get(key) == written
    after = store.client.head_object(Bucket=store.config.bucket, Key=key)
    assert after["LastModified"] == before["LastModified"]


def test_a_version_with_other_bytes_is_a_conflict_that_names_both(
    store: Store, push: Push, model: str, target: Path
) -> None:
    mine = push(b"one", version=5)
    written = store.get(names.manifest_key(model, 5))
    with pytest.raises(ConflictError) as caught:
        push(b"two", version=5)
    yours = push(b"two", version=6)
    assert mine.digest in str(caught.value)
    assert yours.digest in str(caught.value)
    assert store.get(names.manifest_key(model, 5)) == written
    registry.pull(store, model=model, version=5, target=target)
    assert tree(target) == {"model.onnx": b"one"}


def test_of_twenty_pushers_of_one_version_one_wins(
    store: Store, push: Push, model: str, target: Path
) -> None:
    barrier = threading.Barrier(20)

    def race(number: int) -> Published | ConflictError:
        barrier.wait()
        try:
            return push(b"bytes of %d" % number, version=7)
        except ConflictError as error:
            return error

    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(race, range(20)))
    winners = [number for number, result in enumerate(results) if isinstance(result, Published)]
    assert len(winners) == 1
    won = results[winners[0]]
    assert isinstance(won, Published)
    assert won.created
    losers = [str(result) for result in results if isinstance(result, ConflictError)]
    assert all(won.digest in loser for loser in losers)
    registry.pull(store, model=model, version=7, target=target, expect_digest=won.digest)
    assert tree(target) == {"model.onnx": b"bytes of %d" % winners[0]}


def test_pushers_of_the_next_version_each_get_their_own(
    store: Store, push: Push, model: str
) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda number: push(b"bytes of %d" % number), range(8)))
    assert sorted(result.version for result in results) == list(range(1, 9))
    stored = {manifest.version: manifest.digest for manifest in registry.versions(store, model)}
    assert stored == {result.version: result.digest for result in results}


def test_pushers_of_the_same_bytes_all_succeed(store: Store, push: Push, model: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: push(b"the same", version=2), range(8)))
    assert sum(result.created for result in results) == 1
    assert [manifest.version for manifest in registry.versions(store, model)] == [2]


KILLED = """
import os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from serving.registry import registry
from serving.registry.store import Store, StoreConfig

endpoint, access_key, secret_key, model, path, limit, part = sys.argv[1:]
done = 0

def progress(done_bytes):
    global done
    done += done_bytes
    if done >= int(limit):
        os.kill(os.getpid(), signal.SIGKILL)

config = StoreConfig(
    bucket="registry", endpoint_url=endpoint, access_key=access_key, secret_key=secret_key
)
registry.push(
    Store(config), model=model, files={"model.onnx": Path(path)}, format="onnx", source="test",
    now=datetime.now(UTC), progress=progress, multipart_bytes=int(part), part_bytes=int(part),
)
"""


def test_a_killed_push_leaves_nothing_visible_and_goes_on_where_it_stopped(
    store: Store, model: str, tmp_path: Path, target: Path
) -> None:
    path = tmp_path / "model"
    path.write_bytes(os.urandom(4 * PART + 1000))
    config = store.config
    arguments = [
        config.endpoint_url,
        config.access_key,
        config.secret_key,
        model,
        path,
        2 * PART,
        PART,
    ]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert registry.versions(store, model) == ()
    assert model not in registry.models(store)
    published = registry.push(
        store,
        model=model,
        files={"model.onnx": path},
        format="onnx",
        source="test",
        now=NOW,
        multipart_bytes=PART,
        part_bytes=PART,
    )
    assert published.created
    assert published.uploaded_bytes == 2 * PART + 1000
    registry.pull(store, model=model, version=1, target=target)
    assert tree(target) == {"model.onnx": path.read_bytes()}


def test_everything_is_checked_before_the_first_byte(
    store: Store, push: Push, model: str, tmp_path: Path
) -> None:
    good = {"a.onnx": b"good " + os.urandom(8)}
    bad: list[tuple[Any, dict[str, Any]]] = [
        ({**good, "b.bin": pickle.dumps([1])}, {}),
        ({**good, "../b": b"x"}, {}),
        ({**good, "A.onnx": b"x"}, {}),
        ({}, {}),
        (good, {"model": "../x"}),
        (good, {"version": 0}),
        (good, {"version": 2**31}),
        (good, {"format": "ON NX"}),
        (good, {"source": "two\nlines"}),
        (good, {"signing_key": tmp_path / "absent.pem"}),
    ]
    before = set(store.list())
    for content, options in bad:
        with pytest.raises(InputError):
            push(content, **options)
    with pytest.raises(ValueError, match="time zone"):
        push(good, now=NOW.replace(tzinfo=None))
    assert set(store.list()) == before


def test_a_link_in_place_of_a_file_is_refused(store: Store, model: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(ArtifactError, match="symbolic link"):
        registry.push(
            store,
            model=model,
            files={"model.onnx": tmp_path / "link"},
            format="onnx",
            source="test",
            now=NOW,
        )


def test_a_file_that_changes_during_the_push_is_never_published(
    store: Store, model: str, tmp_path: Path
) -> None:
    paths = {"a": tmp_path / "a", "b": tmp_path / "b"}
    for path in paths.values():
        path.write_bytes(os.urandom(100))

    def change(done_bytes: int) -> None:
        paths["b"].write_bytes(os.urandom(100))

    with pytest.raises(IntegrityError, match="changed while it was uploaded"):
        registry.push(
            store, model=model, files=paths, format="onnx", source="x", now=NOW, progress=change
        )
    assert registry.versions(store, model) == ()


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "flipped": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "truncated": lambda data: data[:-1],
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_blob_leaves_no_target(
    store: Store, push: Push, model: str, target: Path, kind: str
) -> None:
    push({"good.onnx": b"good", "model.onnx": os.urandom(1000)}, version=3)
    file = registry.show(store, model, 3).files[1]
    damage(store, file.digest, DAMAGE[kind])
    with pytest.raises(IntegrityError, match=rf"{model} 3 model\.onnx: .*{file.digest}.*sha256:"):
        registry.pull(store, model=model, version=3, target=target)
    assert not target.exists()
    assert listed(target.parent) == [".3.lock"]


def test_a_pickle_that_came_past_push_is_refused_on_pull(
    store: Store, push: Push, model: str, target: Path
) -> None:
    push(b"harmless", version=1)
    data = pickle.dumps([1])
    harmless = registry.show(store, model, 1)
    from serving.registry import blobs

    blob, _ = blobs.upload_bytes(store, data)
    file = harmless.files[0].model_copy(
        update={"sha256": blob.digest.removeprefix("sha256:"), "size_bytes": blob.size_bytes}
    )
    forged = harmless.model_copy(update={"version": 2, "files": (file,)})
    store.create(names.manifest_key(model, 2), forged.to_bytes())
    with pytest.raises(ArtifactError, match=rf"^{model} 2 model\.onnx: a pickle"):
        registry.pull(store, model=model, version=2, target=target)
    assert not target.exists()


def test_a_version_without_its_manifest_is_invisible(store: Store, push: Push, model: str) -> None:
    store.create(f"models/{model}/1/other.json", b"{}")
    store.create(f"models/{model}/2/", b"")
    store.create(f"models/{model}/03/manifest.json", b"{}")
    assert registry.versions(store, model) == ()
    assert model not in registry.models(store)
    for version in (10, 9, 2):
        push(b"%d" % version, version=version)
    assert [manifest.version for manifest in registry.versions(store, model)] == [2, 9, 10]
    assert model in registry.models(store)


def test_an_unknown_version_is_told_with_those_there_are(
    store: Store, push: Push, model: str, target: Path
) -> None:
    push(b"1", version=4)
    push(b"2", version=11)
    with pytest.raises(InputError, match=f"{model} has no version 5; it has 4, 11"):
        registry.show(store, model, 5)
    with pytest.raises(InputError, match=f"published models: .*{model}"):
        registry.pull(store, model=f"{model}-x", version=1, target=target)
    assert not target.exists()


def test_a_manifest_of_another_version_or_none_at_all_is_refused(
    store: Store, push: Push, model: str, target: Path
) -> None:
    push(b"old", version=1)
    old = store.get(names.manifest_key(model, 1))
    assert old is not None
    store.create(names.manifest_key(model, 2), old[0])
    store.create(names.manifest_key(model, 3), b"{}")
    for version in (2, 3):
        with pytest.raises(IntegrityError, match=f"models/{model}/{version}/manifest.json"):
            registry.pull(store, model=model, version=version, target=target)
    assert not target.exists()


def test_another_digest_than_expected_is_refused(
    store: Store, push: Push, model: str, target: Path
) -> None:
    published = push(b"one", version=3)
    other = "sha256:" + "0" * 64
    with pytest.raises(IntegrityError, match=f"{published.digest}, but {other}"):
        registry.pull(store, model=model, version=3, target=target, expect_digest=other)
    assert not target.exists()
    registry.pull(store, model=model, version=3, target=target, expect_digest=published.digest)
    with pytest.raises(IntegrityError):
        registry.pull(store, model=model, version=3, target=target, expect_digest=other)


@pytest.fixture
def dead_store(store: Store) -> Store:
    """The store, with nobody listening: any use of it fails."""
    return Store(replace(store.config, endpoint_url="http://127.0.0.1:1"))


def test_a_pulled_version_is_kept_while_the_store_is_down(
    store: Store, dead_store: Store, push: Push, model: str, target: Path, key_pair: Keys
) -> None:
    push({"a": b"a", "b/c": b"c"}, version=3, signing_key=key_pair[0])
    options: dict[str, Any] = {"model": model, "version": 3, "target": target}
    pulled = registry.pull(store, **options, verify_key=key_pair[1])
    inode = target.stat().st_ino
    told: list[int] = []
    with dead_store:
        kept = registry.pull(
            dead_store,
            **options,
            verify_key=key_pair[1],
            expect_digest=pulled.digest,
            progress=told.append,
        )
    assert kept == pulled
    assert target.stat().st_ino == inode
    assert sum(told) == pulled.size_bytes


def link(target: Path) -> None:
    (target / "a").unlink()
    (target / "a").symlink_to("b/c")


TAMPERINGS: dict[str, Callable[[Path], object]] = {
    "flipped": lambda target: (target / "a").write_bytes(b"b"),
    "grown": lambda target: (target / "a").write_bytes(b"aa"),
    "missing": lambda target: (target / "b" / "c").unlink(),
    "extra": lambda target: (target / "evil.py").write_text("x"),
    "extra hidden": lambda target: (target / "b" / ".git").write_text("x"),
    "linked": link,
    "linked folder": lambda target: (target / "d").symlink_to("/etc"),
    "manifest": lambda target: target.with_name("3.manifest.json").write_text("{}"),
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_a_target_that_was_changed_is_pulled_again(
    store: Store, dead_store: Store, push: Push, model: str, target: Path, tampering: str
) -> None:
    content = {"a": b"a", "b/c": b"c"}
    push(content, version=3)
    registry.pull(store, model=model, version=3, target=target)
    TAMPERINGS[tampering](target)
    with dead_store, pytest.raises(StoreError):
        registry.pull(dead_store, model=model, version=3, target=target)
    registry.pull(store, model=model, version=3, target=target)
    assert tree(target) == content
    assert listed(target.parent) == [".3.lock", "3", "3.manifest.json"]


def test_a_target_of_another_version_is_replaced(
    store: Store, push: Push, model: str, target: Path, key_pair: Keys
) -> None:
    push({"a": b"a", "old": b"old"}, version=1, signing_key=key_pair[0])
    push({"a": b"b"}, version=2)
    for version in (1, 2, 1):
        manifest = registry.pull(store, model=model, version=version, target=target)
        assert set(tree(target)) == {file.path for file in manifest.files}
        assert target.with_name("3.signature.json").exists() == (version == 1)


def test_a_folder_that_no_pull_made_is_never_replaced(
    store: Store, push: Push, model: str, target: Path
) -> None:
    push(b"one", version=3)
    target.mkdir(parents=True)
    (target / "thesis.txt").write_text("my only copy")
    with pytest.raises(InputError, match="holds files that no pull has put there"):
        registry.pull(store, model=model, version=3, target=target)
    assert tree(target) == {"thesis.txt": b"my only copy"}
    (target / "thesis.txt").unlink()
    registry.pull(store, model=model, version=3, target=target)
    assert tree(target) == {"model.onnx": b"one"}


def test_a_target_that_is_a_link_or_a_file_is_refused(
    store: Store, push: Push, model: str, tmp_path: Path
) -> None:
    push(b"one", version=3)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    (tmp_path / "file").write_text("x")
    for name in ("link", "file"):
        with pytest.raises(InputError, match="is not a folder"):
            registry.pull(store, model=model, version=3, target=tmp_path / name)
    assert listed(tmp_path / "elsewhere") == []


def test_leftovers_of_a_killed_pull_are_cleared(
    store: Store, push: Push, model: str, target: Path
) -> None:
    push(b"one", version=3)
    leftover = target.with_name(".3.pull")
    leftover.mkdir(parents=True)
    (leftover / "half").write_bytes(b"x")
    registry.pull(store, model=model, version=3, target=target)
    assert tree(target) == {"model.onnx": b"one"}
    assert not leftover.exists()


def test_pullers_of_one_target_agree(store: Store, push: Push, model: str, target: Path) -> None:
    content = {"a": os.urandom(300_000), "b": os.urandom(10)}
    push(content, version=3)
    with ThreadPoolExecutor(6) as pool:
        pulls = [
            pool.submit(registry.pull, store, model=model, version=3, target=target)
            for _ in range(6)
        ]
        assert len({pulled.result().digest for pulled in pulls}) == 1
    assert tree(target) == content


def test_a_signed_version_is_pulled_with_the_right_key_only(
    store: Store,
    push: Push,
    model: str,
    target: Path,
    key_pair: Keys,
    make_key_pair: Callable[[], Keys],
) -> None:
    push({"a": b"a", ".gitignore": b"*"}, version=3, signing_key=key_pair[0])
    with pytest.raises(IntegrityError, match="signature does not hold"):
        registry.pull(store, model=model, version=3, target=target, verify_key=make_key_pair()[1])
    assert not target.exists()
    registry.pull(store, model=model, version=3, target=target, verify_key=key_pair[1])
    assert tree(target) == {"a": b"a", ".gitignore": b"*"}


def test_an_unsigned_version_is_refused_where_a_key_is_set(
    store: Store, push: Push, model: str, target: Path, key_pair: Keys
) -> None:
    push(b"one", version=3)
    with pytest.raises(IntegrityError, match=f"{model} 3 is not signed"):
        registry.pull(store, model=model, version=3, target=target, verify_key=key_pair[1])
    assert not target.exists()
    registry.pull(store, model=model, version=3, target=target)
    with pytest.raises(IntegrityError, match="is not signed"):
        registry.pull(store, model=model, version=3, target=target, verify_key=key_pair[1])


def test_signing_what_was_published_unsigned_makes_a_new_version(
    push: Push, key_pair: Keys
) -> None:
    first = push(b"one")
    with pytest.raises(ConflictError, match="without a signature"):
        push(b"one", version=1, signing_key=key_pair[0])
    signed = push(b"one", signing_key=key_pair[0])
    assert (signed.version, signed.created, signed.digest) == (2, True, first.digest)
    again = push(b"one", signing_key=key_pair[0])
    assert (again.version, again.created) == (2, False)


def test_an_old_signed_version_under_a_new_number_is_refused(
    store: Store, push: Push, model: str, target: Path, key_pair: Keys
) -> None:
    push(b"old, with a known hole", version=1, signing_key=key_pair[0])
    replayed = registry.show(store, model, 1).model_copy(update={"version": 2})
    store.create(names.manifest_key(model, 2), replayed.to_bytes())
    with pytest.raises(IntegrityError, match=f"'{model}/1', not of '{model}/2'"):
        registry.pull(store, model=model, version=2, target=target, verify_key=key_pair[1])
    assert not target.exists()


def test_a_lost_or_changed_signature_is_refused(
    store: Store, push: Push, model: str, target: Path, key_pair: Keys
) -> None:
    push(b"one", version=3, signing_key=key_pair[0])
    signature = registry.show(store, model, 3).signature
    assert signature is not None
    damage(store, signature, lambda data: data[:-1] + b" }")
    with pytest.raises(IntegrityError, match="the signature is not the one published"):
        registry.pull(store, model=model, version=3, target=target, verify_key=key_pair[1])
    store.delete(names.blob_key(signature))
    with pytest.raises(IntegrityError, match="the signature is not the one published"):
        registry.pull(store, model=model, version=3, target=target, verify_key=key_pair[1])
    assert not target.exists()


FULL = """
import resource, sys
from pathlib import Path
from serving.errors import GalleyError
from serving.registry import registry
from serving.registry.store import Store, StoreConfig

endpoint, access_key, secret_key, model, target = sys.argv[1:]
config = StoreConfig(
    bucket="registry", endpoint_url=endpoint, access_key=access_key, secret_key=secret_key
)
with Store(config) as store:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        registry.pull(store, model=model, version=3, target=Path(target))
    except GalleyError as error:
        print(type(error).__name__, error)
        raise SystemExit(error.exit_code)
"""


def test_a_disk_that_fills_during_a_pull_leaves_no_target(
    store: Store, push: Push, model: str, target: Path
) -> None:
    """A limit on file size stands for the full disk: the write fails in the same place."""
    push(os.urandom(3_000_000), version=3)
    config = store.config
    arguments = [config.endpoint_url, config.access_key, config.secret_key, model, target]
    done = subprocess.run(
        [sys.executable, "-c", FULL, *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == InfrastructureError.exit_code, done.stderr
    assert done.stdout.startswith("InfrastructureError ")
    assert "needed 3000000 bytes, free " in done.stdout
    assert done.stdout.count("\n") == 1
    assert listed(target.parent) == [".3.lock"]


def test_a_disk_that_is_too_full_is_told_before_the_first_byte(
    store: Store, push: Push, model: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(b"x" * 1000, version=3)
    monkeypatch.setattr("serving.registry.blobs.free_bytes", lambda folder: 999)
    with pytest.raises(InfrastructureError, match="needed 1000 bytes, free 999 bytes"):
        registry.pull(store, model=model, version=3, target=target)
    assert listed(target.parent) == [".3.lock"]


def test_a_target_in_a_place_that_cannot_be_written_is_told_in_one_line(
    store: Store, push: Push, model: str
) -> None:
    push(b"x", version=3)
    for parent in ("/proc/nowhere", "/dev/null"):
        with pytest.raises(GalleyError) as caught:
            registry.pull(store, model=model, version=3, target=Path(parent, "3"))
        assert "\n" not in str(caught.value)


def test_the_manifest_in_the_store_is_plain_json(store: Store, push: Push, model: str) -> None:
    push(b"one", version=3)
    found = store.get(names.manifest_key(model, 3))
    assert found is not None
    document = json.loads(found[0])
    assert document["files"][0]["path"] == "model.onnx"
    assert Manifest.parse(found[0], "x").version == document["version"] == 3
