"""The store: conditional writes that hold, a probe that finds out, and faults told in one line."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from serving.errors import ConflictError, IntegrityError, StoreError
from serving.registry.store import Store, StoreConfig


class Careless(BaseHTTPRequestHandler):
    """An S3 server of the careless kind: it takes every write, whatever its condition."""

    protocol_version = "HTTP/1.1"
    honours: frozenset[str] = frozenset()
    objects: dict[str, bytes]

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hash(body):x}"')
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        there = self.objects.get(self.path)
        etag = None if there is None else f'"{hash(there):x}"'
        clash = self.headers["If-None-Match"] is not None and there is not None
        stale = self.headers["If-Match"] is not None and self.headers["If-Match"] != etag
        if (clash and "If-None-Match" in self.honours) or (stale and "If-Match" in self.honours):
            self.answer(412)
            return
        self.objects[self.path] = body
        self.answer(200)

    def do_GET(self) -> None:
        there = self.objects.get(self.path.partition("?")[0])
        self.answer(404 if there is None else 200, there or b"")

    def do_DELETE(self) -> None:
        self.objects.pop(self.path, None)
        self.answer(204)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[StoreConfig]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield config(f"http://127.0.0.1:{server.server_address[1]}")
        finally:
            server.shutdown()
            thread.join()


def config(endpoint_url: str, word: str = "hidden") -> StoreConfig:
    return StoreConfig(
        bucket="registry", endpoint_url=endpoint_url, access_key="key", secret_key=word
    )


@pytest.mark.parametrize(
    ("honoured", "named"), [((), "If-None-Match"), (("If-None-Match",), "If-Match")]
)
def test_the_probe_finds_a_server_that_ignores_conditions(
    honoured: tuple[str, ...], named: str
) -> None:
    kept: dict[str, bytes] = {}

    class Half(Careless):
        objects, honours = kept, frozenset(honoured)

    with serving(Half) as place, Store(place) as store:
        with pytest.raises(StoreError, match=f"ignores {named},") as caught:
            store.probe()
        assert "\n" not in str(caught.value)
    assert kept == {}


@pytest.mark.live
def test_the_probe_passes_on_a_real_server_and_leaves_nothing(store: Store) -> None:
    store.probe()
    assert list(store.list(".galley-probe")) == []


def test_the_secret_is_never_shown() -> None:
    place = config("http://127.0.0.1:1")
    assert "hidden" not in repr(place)
    assert "hidden" not in place.label


def refused_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


def test_a_store_that_is_not_there_is_told_in_one_line() -> None:
    with Store(config(f"http://127.0.0.1:{refused_port()}")) as store:
        with pytest.raises(StoreError, match="cannot be reached; start it") as caught:
            store.get("x")
        with pytest.raises(StoreError):
            store.ensure_bucket()
        with pytest.raises(StoreError):
            store.create("x", b"")
        with pytest.raises(StoreError):
            list(store.list("x"))
        with pytest.raises(StoreError):
            list(store.stream("x"))
    message = str(caught.value)
    assert "http://127.0.0.1" in message
    assert "bucket=registry" in message
    assert "\n" not in message
    assert caught.value.exit_code == 5


def test_missing_credentials_are_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, f"{tmp_path}/absent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    place = StoreConfig(bucket="registry", endpoint_url=f"http://127.0.0.1:{refused_port()}")
    with Store(place) as store, pytest.raises(StoreError, match="no usable credentials"):
        store.get("x")


@pytest.mark.parametrize("endpoint", ["not a url", "http://", "ftp://x"])
def test_a_bad_endpoint_is_told_in_one_line(endpoint: str) -> None:
    with Store(config(endpoint)) as store, pytest.raises(StoreError) as caught:
        store.get("x")
    assert "\n" not in str(caught.value)


def test_a_failing_server_is_told_with_its_disk_in_mind() -> None:
    class Failing(Careless):
        def do_GET(self) -> None:
            self.answer(500, b"<Error><Code>InternalError</Code><Message>a\nb</Message></Error>")

    told = pytest.raises(StoreError, match=r"500 InternalError.*free disk space")
    with serving(Failing) as place, Store(place) as store, told as caught:
        store.get("x")
    assert "\n" not in str(caught.value)


@pytest.mark.live
def test_wrong_keys_are_told_in_one_line(s3_server: StoreConfig) -> None:
    with Store(replace(s3_server, secret_key=s3_server.bucket)) as store:
        with pytest.raises(StoreError, match="the secret key is wrong"):
            store.get("x")
        with pytest.raises(StoreError, match="access is denied"):
            store.head("x")
    with Store(replace(s3_server, access_key="nobody")) as store, pytest.raises(StoreError):
        store.create("x", b"")


@pytest.mark.live
def test_a_missing_bucket_is_a_fault_and_not_an_absent_object(s3_server: StoreConfig) -> None:
    told = pytest.raises(StoreError, match="the bucket does not exist")
    with Store(replace(s3_server, bucket="absent")) as store, told:
        store.get("x")


@pytest.mark.live
def test_a_bucket_is_made_once_and_then_found(s3_server: StoreConfig) -> None:
    with Store(replace(s3_server, bucket="another")) as store:
        store.ensure_bucket()
        store.ensure_bucket()
        assert store.get("x") is None


@pytest.mark.live
def test_what_exists_is_not_created_again(store: Store, model: str) -> None:
    etag = store.create(f"{model}/a", b"first")
    with pytest.raises(ConflictError, match="exists already"):
        store.create(f"{model}/a", b"second")
    assert store.get(f"{model}/a") == (b"first", etag)


@pytest.mark.live
def test_only_the_current_token_swaps(store: Store, model: str) -> None:
    key = f"{model}/a"
    first = store.create(key, b"first")
    second = store.swap(key, b"second", first)
    with pytest.raises(ConflictError, match="has changed since"):
        store.swap(key, b"third", first)
    assert store.get(key) == (b"second", second)
    store.delete(key)
    store.delete(key)
    with pytest.raises(ConflictError):
        store.swap(key, b"third", second)
    assert store.get(key) is None


@pytest.mark.live
def test_of_twenty_swaps_from_one_token_one_wins(store: Store, model: str) -> None:
    key = f"{model}/a"
    etag = store.create(key, b"first")

    def swap(number: int) -> int | None:
        try:
            store.swap(key, b"%d" % number, etag)
        except ConflictError:
            return None
        return number

    with ThreadPoolExecutor(20) as pool:
        winners = [won for won in pool.map(swap, range(20)) if won is not None]
    assert len(winners) == 1
    found = store.get(key)
    assert found is not None
    assert found[0] == b"%d" % winners[0]


@pytest.mark.live
def test_a_folder_is_listed_by_its_parts(store: Store, model: str) -> None:
    for key in (f"{model}/rank/1", f"{model}/ranker/1", f"{model}/rank/2/x", f"{model}/rank/3/"):
        store.create(key, b"")
    assert list(store.list(model, "rank")) == [f"{model}/rank/1", f"{model}/rank/2/x"]
    assert list(store.list(model, "absent")) == []


@pytest.mark.live
def test_a_stream_gives_the_bytes_and_an_absent_one_is_told(store: Store, model: str) -> None:
    data = bytes(range(256)) * 10_000
    store.create(f"{model}/a", data)
    assert b"".join(store.stream(f"{model}/a")) == data
    with pytest.raises(IntegrityError, match="is gone from the store"):
        list(store.stream(f"{model}/b"))


def test_a_stream_that_breaks_goes_on_where_it_broke() -> None:
    data = bytes(range(256)) * 10_000
    asked: list[str | None] = []

    class Breaking(Careless):
        def do_GET(self) -> None:
            asked.append(self.headers["Range"])
            start = int((self.headers["Range"] or "bytes=0-")[len("bytes=") : -1])
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(data) - start))
            self.send_header("ETag", '"same"')
            self.end_headers()
            self.wfile.write(data[start : start + 1_100_000])
            self.close_connection = True

    with serving(Breaking) as place, Store(place) as store:
        assert b"".join(store.stream("x")) == data
    assert asked == [None, "bytes=1100000-", "bytes=2200000-"]


def test_a_stream_that_never_gets_on_is_given_up() -> None:
    class Breaking(Careless):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.send_header("ETag", '"same"')
            self.end_headers()
            self.close_connection = True

    with serving(Breaking) as place, Store(place) as store, pytest.raises(StoreError) as caught:
        list(store.stream("x"))
    assert "downloading x failed" in str(caught.value)


def test_a_document_that_breaks_off_is_not_taken_for_whole() -> None:
    class Breaking(Careless):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.send_header("ETag", '"same"')
            self.end_headers()
            self.wfile.write(b"half")
            self.close_connection = True

    with serving(Breaking) as place, Store(place) as store, pytest.raises(StoreError):
        store.get("x")
