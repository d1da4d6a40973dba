"""Segments become objects and lines again, once each, whatever stops in between."""

import gzip
import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from serving.errors import InputError, IntegrityError, StoreError
from serving.gateway.prediction.log import PredictionLog
from serving.gateway.prediction.record import Record
from serving.gateway.prediction.samples import Sample
from serving.gateway.prediction.segments import closed_segments
from serving.gateway.prediction.shipping import NO_MODEL, Shipped, read_predictions, ship
from serving.registry.store import Store, StoreConfig
from serving.registry.versions import models
from tests.serving.registry.conftest import free_ports

MakeRecord = Callable[..., Record]
NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
CANARY = "canary-55d0"


_numbers = itertools.count(1)


@pytest.fixture
def environment() -> str:
    """An environment that no other test ships to."""
    return f"test-{next(_numbers)}"


def log(folder: Path, *records: Record) -> Path:
    """The segment that holds just these."""
    written = PredictionLog(folder, "hop-0")
    for record in records:
        written.write(record)
    written.close()
    assert written.dropped == 0
    return closed_segments(folder)[-1]


def ids(lines: Any) -> list[str]:
    return [line["request_id"] for line in lines]


def test_a_segment_is_parted_by_model_and_hour_and_removed(
    tmp_path: Path, store: Store, environment: str, make_record: MakeRecord
) -> None:
    segment = log(
        tmp_path,
        make_record(request_id="a"),
        make_record(request_id="b", time=NOON.timestamp() - 0.001),
        make_record(request_id="c", model="filetype"),
        make_record(request_id="d"),
        make_record(request_id="e", model="../../models/ranker/1"),
    )
    assert ship(tmp_path, store, environment) == Shipped(segments=1, objects=4, lines=5)
    assert list(tmp_path.iterdir()) == []
    base, name = f"predictions/{environment}", f"{segment.stem}.jsonl.gz"
    assert sorted(store.list("predictions", environment)) == [
        f"{base}/{NO_MODEL}/date=2026-12-01/hour=12/{name}",
        f"{base}/filetype/date=2026-12-01/hour=12/{name}",
        f"{base}/ranker/date=2026-12-01/hour=11/{name}",
        f"{base}/ranker/date=2026-12-01/hour=12/{name}",
    ]
    found = list(read_predictions(store, environment, "ranker", NOON - DAY, NOON + DAY))
    assert ids(found) == ["b", "a", "d"]
    assert found[1]["total_ms"] == 4.0


def test_a_period_begins_with_its_first_instant_and_ends_before_its_last(
    tmp_path: Path, store: Store, environment: str, make_record: MakeRecord
) -> None:
    hours = [-30, -24, -1, 0, 1, 23, 24]
    times = [NOON + timedelta(hours=hour) for hour in hours]
    log(tmp_path, *(make_record(request_id=str(t), time=t.timestamp()) for t in times))
    ship(tmp_path, store, environment)

    def read(since: datetime, until: datetime) -> list[str]:
        return ids(read_predictions(store, environment, "ranker", since, until))

    for since in times:
        for until in times:
            assert read(since, until) == [str(t) for t in times if since <= t < until]
    east = NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert read(east, east + timedelta(milliseconds=1)) == [str(NOON)]
    assert list(read_predictions(store, environment, "nobody", times[0], times[-1])) == []


def test_a_shipper_that_stops_before_it_removes_a_segment_ships_it_once(
    tmp_path: Path, store: Store, environment: str, make_record: MakeRecord
) -> None:
    segment = log(tmp_path, make_record(request_id="a"), make_record(model="filetype"))
    shutil.copy2(segment, tmp_path / "kept")
    ship(tmp_path, store, environment)
    (tmp_path / "kept").rename(segment)
    assert ship(tmp_path, store, environment).segments == 1
    assert closed_segments(tmp_path) == []
    assert len(list(store.list("predictions", environment))) == 2
    assert ids(read_predictions(store, environment, "ranker", NOON, NOON + DAY)) == ["a"]


def test_a_store_that_is_down_keeps_every_segment_for_later(
    tmp_path: Path, s3_server: StoreConfig, store: Store, environment: str, make_record: MakeRecord
) -> None:
    log(tmp_path, make_record(request_id="a"))
    log(tmp_path, make_record(request_id="b"))
    (port,) = free_ports(1)
    with (
        Store(replace(s3_server, endpoint_url=f"http://127.0.0.1:{port}")) as down,
        pytest.raises(StoreError, match="cannot be reached"),
    ):
        ship(tmp_path, down, environment)
    assert len(closed_segments(tmp_path)) == 2
    ship(tmp_path, store, environment)
    assert ids(read_predictions(store, environment, "ranker", NOON, NOON + DAY)) in (
        ["a", "b"],
        ["b", "a"],
    )


def test_shipping_stops_between_two_segments_when_it_is_told_to(
    tmp_path: Path, store: Store, environment: str, make_record: MakeRecord
) -> None:
    for _ in range(3):
        log(tmp_path, make_record())
    answers = iter([True, False])
    assert ship(tmp_path, store, environment, lambda: next(answers)).segments == 1
    assert len(closed_segments(tmp_path)) == 2


def test_a_line_that_was_cut_off_is_left_out_and_counted(
    tmp_path: Path, store: Store, environment: str, make_record: MakeRecord
) -> None:
    segment = log(tmp_path, make_record(request_id="a"), make_record(request_id="b"))
    lost = segment.read_bytes()[:-30]
    segment.write_bytes(lost + b'\n[]\n{"time": 5}\n{"time": "../../x"}\n\xff\n')
    assert ship(tmp_path, store, environment) == Shipped(1, 1, 1, unreadable=5)
    assert ids(read_predictions(store, environment, "ranker", NOON, NOON + DAY)) == ["a"]


def test_a_segment_without_a_readable_line_is_removed_and_ships_nothing(
    tmp_path: Path, store: Store, environment: str
) -> None:
    (tmp_path / "hop-0-x.jsonl").write_bytes(b'{"time"')
    assert ship(tmp_path, store, environment) == Shipped(segments=1, unreadable=1)
    assert list(tmp_path.iterdir()) == []


def test_a_segment_that_is_still_written_is_not_shipped(
    tmp_path: Path, store: Store, environment: str, make_record: MakeRecord
) -> None:
    segment = log(tmp_path, make_record())
    segment.rename(segment.with_name(f"{segment.name}.open"))
    assert ship(tmp_path, store, environment) == Shipped()
    assert ship(tmp_path / "missing", store, environment) == Shipped()


def test_redacted_values_reach_no_object(
    tmp_path: Path, store: Store, environment: str, make_record: MakeRecord
) -> None:
    tensors = [
        {"name": "private", "datatype": "BYTES", "shape": [1], "data": [CANARY]},
        {"name": "public", "datatype": "BYTES", "shape": [1], "data": ["seen"]},
    ]
    body = json.dumps({"inputs": tensors}).encode()
    log(tmp_path, make_record(inputs=Sample.of(body, None, ("private",))))
    ship(tmp_path, store, environment)
    (key,) = store.list("predictions", environment)
    found = store.get(key)
    assert found is not None
    assert CANARY.encode() not in gzip.decompress(found[0])
    (line,) = read_predictions(store, environment, "ranker", NOON, NOON + DAY)
    assert line["inputs"] == [
        {"name": "private", "datatype": "BYTES", "shape": [1], "redacted": True},
        tensors[1],
    ]


def test_an_object_that_is_no_log_is_told_by_name(store: Store, environment: str) -> None:
    store.create(
        f"predictions/{environment}/ranker/date=2026-12-01/hour=12/x.jsonl.gz", b"something else"
    )
    with pytest.raises(IntegrityError, match=r"x\.jsonl\.gz is not gzip"):
        list(read_predictions(store, environment, "ranker", NOON, NOON + DAY))


def test_names_that_the_registry_does_not_take_are_refused(tmp_path: Path, store: Store) -> None:
    with pytest.raises(InputError, match="environment"):
        ship(tmp_path, store, "a/b")
    with pytest.raises(InputError, match="model"):
        list(read_predictions(store, "local", "../x", NOON, NOON))


def test_shipped_predictions_are_no_models_of_the_registry(
    tmp_path: Path, store: Store, environment: str, make_record: MakeRecord
) -> None:
    log(tmp_path, make_record(model="only-logged"))
    ship(tmp_path, store, environment)
    assert "only-logged" not in models(store)
