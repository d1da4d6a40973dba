"""What the log writes, what it drops, and what is left of it when its process is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serving.gateway.prediction.log import PredictionLog
from serving.gateway.prediction.record import Record, line_of
from serving.gateway.prediction.samples import Sample
from serving.gateway.prediction.segments import close_abandoned, closed_segments

ROOT = Path(__file__).parents[4]
MakeRecord = Callable[..., Record]
CANARY = "canary-91c4"

WRITER = """
import sys, time
from pathlib import Path
from serving.gateway.prediction.log import PredictionLog
from serving.gateway.prediction.record import Record

log, number = PredictionLog(Path(sys.argv[1]), "hop-0"), 0
while True:
    for _ in range(20):
        now = time.time()
        log.write(Record(now, f"r-{number}", "c", "ranker", 1, "", "hit", 200, 0, 0, 0, 1, 1))
        number += 1
    print(number, now, flush=True)
    time.sleep(0.005)
"""
FULL_DISK = """
import resource, sys, time
from pathlib import Path
from serving.gateway.prediction.log import PredictionLog
from serving.gateway.prediction.record import Record

resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
log = PredictionLog(Path(sys.argv[1]), "hop-0")
for number in range(200):
    log.write(Record(0, f"r-{number}", "c", "ranker", 1, "", "hit", 200, 0, 0, 0, 1, 1))
log.close()
print(log.dropped)
"""


def lines_in(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in closed_segments(folder)
        for line in path.read_bytes().splitlines()
    ]


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def test_a_line_tells_the_answer_and_holds_no_tensor_unless_sampled(
    make_record: MakeRecord,
) -> None:
    assert json.loads(line_of(make_record(time=1_796_126_400.25, queue_ms=0.123456))) == {
        "time": "2026-12-01T12:00:00.250Z",
        "request_id": "r-1",
        "client": "uploads",
        "model": "ranker",
        "version": 3,
        "digest": "sha256:" + "a" * 64,
        "cache": "miss",
        "status": 200,
        "queue_ms": 0.123,
        "compute_ms": 3.5,
        "total_ms": 4.0,
        "request_bytes": 120,
        "response_bytes": 80,
    }
    refused = json.loads(line_of(make_record(status=400, error="shape is not [1]")))
    assert refused["error"] == "shape is not [1]"


def test_a_sampled_answer_tells_its_tensors(make_record: MakeRecord) -> None:
    body = b'{"inputs": [{"name": "x", "datatype": "INT8", "shape": [1], "data": [5]}]}'
    line = json.loads(line_of(make_record(inputs=Sample.of(body, None, ()))))
    assert line["inputs"] == [{"name": "x", "datatype": "INT8", "shape": [1], "data": [5]}]
    assert "outputs" not in line


def test_every_line_is_in_closed_segments_after_close_and_in_order(
    tmp_path: Path, make_record: MakeRecord
) -> None:
    log = PredictionLog(tmp_path / "new" / "folder", "hop-0", segment_bytes=10_000)
    for number in range(500):
        log.write(make_record(request_id=f"r-{number}"))
    log.close()
    folder = tmp_path / "new" / "folder"
    assert len(closed_segments(folder)) > 5
    assert [path for path in folder.iterdir() if path.suffix == ".open"] == []
    assert [line["request_id"] for line in lines_in(folder)] == [f"r-{n}" for n in range(500)]
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
    assert (log.dropped, log.dropped_samples, log.removed_segments) == (0, 0, 0)


def test_a_segment_is_closed_when_it_is_old_though_nothing_is_written(
    tmp_path: Path, make_record: MakeRecord
) -> None:
    log = PredictionLog(tmp_path, "hop-0", segment_seconds=0.1)
    log.write(make_record())
    until(lambda: len(lines_in(tmp_path)) == 1)
    log.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_log_that_nobody_wrote_to_leaves_no_file(tmp_path: Path) -> None:
    PredictionLog(tmp_path, "hop-0").close()
    assert list(tmp_path.iterdir()) == []


def test_lines_beyond_the_queue_and_after_the_end_are_dropped_and_counted(
    tmp_path: Path, make_record: MakeRecord
) -> None:
    log = PredictionLog(tmp_path, "hop-0", most_lines=0)
    log.write(make_record())
    assert log.dropped == 1
    log.close()
    log.write(make_record())
    assert log.dropped == 2


def test_a_folder_that_cannot_be_written_to_costs_lines_and_nothing_else(
    tmp_path: Path, make_record: MakeRecord
) -> None:
    (tmp_path / "file").write_text("in the way")
    log = PredictionLog(tmp_path / "file" / "folder", "hop-0")
    log.write(make_record())
    until(lambda: log.dropped == 1)
    (tmp_path / "file").unlink()
    log.write(make_record(request_id="later"))
    log.close()
    assert log.dropped == 1
    assert [line["request_id"] for line in lines_in(tmp_path / "file" / "folder")] == ["later"]


def test_a_full_disk_drops_whole_lines(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    kept = lines_in(tmp_path)
    assert 0 < len(kept) < 200
    assert int(done.stdout) == 200 - len(kept)


def test_a_folder_that_is_removed_costs_its_lines_and_no_later_ones(
    tmp_path: Path, make_record: MakeRecord
) -> None:
    folder = tmp_path / "folder"
    log = PredictionLog(folder, "hop-0", segment_bytes=1)
    log.write(make_record())
    until(lambda: any(folder.glob("*.open")))
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    log.write(make_record(request_id="later"))
    log.close()
    assert log.dropped == 1
    assert [line["request_id"] for line in lines_in(folder)] == ["later"]


def test_the_oldest_segments_make_room_for_new_ones(
    tmp_path: Path, make_record: MakeRecord
) -> None:
    log = PredictionLog(tmp_path, "hop-0", segment_bytes=1, most_unshipped_bytes=70_000)
    for number in range(1_000):
        log.write(make_record(request_id=f"r-{number}"))
    log.close()
    assert log.removed_segments > 0
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 100_000
    assert lines_in(tmp_path)[-1]["request_id"] == "r-999"
    assert log.dropped == 0


def test_tensors_beyond_the_memory_for_them_are_left_out_and_the_lines_kept(
    tmp_path: Path, make_record: MakeRecord
) -> None:
    body = b'{"inputs": [{"name": "x", "datatype": "INT8", "shape": [1], "data": [5]}]}'
    log = PredictionLog(tmp_path, "hop-0", most_sample_bytes=10)
    log.write(make_record(inputs=Sample.of(body, None, ())))
    log.close()
    assert log.dropped_samples == 1
    assert ["inputs" in line for line in lines_in(tmp_path)] == [False]


def test_nothing_that_a_client_sends_ends_the_log(tmp_path: Path, make_record: MakeRecord) -> None:
    deep = b"[" * 600 + b"]" * 600
    body = b'{"inputs": [{"name": "x", "datatype": "INT8", "shape": [1], "data": [1, %s]}]}' % deep
    log = PredictionLog(tmp_path, "hop-0")
    log.write(make_record(request_id="\udc80"))
    log.write(make_record(request_id="deep", inputs=Sample.of(body, None, ())))
    log.write(make_record(request_id='"\n{', model="../x"))
    log.close()
    assert log.dropped == 1
    kept = lines_in(tmp_path)
    assert [line["request_id"] for line in kept] == ["deep", '"\n{']
    assert "inputs" not in kept[0]


def test_a_redacted_value_is_in_no_file(tmp_path: Path, make_record: MakeRecord) -> None:
    request = {
        "inputs": [
            {"name": "private", "datatype": "BYTES", "shape": [1], "data": [CANARY]},
            {"name": "public", "datatype": "BYTES", "shape": [1], "data": ["seen"]},
        ]
    }
    head = json.dumps(
        {
            "outputs": [
                {
                    "name": "secret",
                    "datatype": "BYTES",
                    "shape": [1],
                    "parameters": {"binary_data_size": 4 + len(CANARY)},
                }
            ]
        }
    ).encode()
    answer = head + len(CANARY).to_bytes(4, "little") + CANARY.encode()
    redact = ("private", "secret")
    log = PredictionLog(tmp_path, "hop-0")
    for cut in range(len(answer) - len(head) + 1):
        damaged = json.dumps(request).encode()[: -cut or None]
        log.write(
            make_record(
                inputs=Sample.of(damaged, None, redact),
                outputs=Sample.of(answer[: len(answer) - cut], len(head), redact),
            )
        )
    log.close()
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"seen" in written
    assert CANARY.encode() not in written
    assert CANARY.encode() in answer


def test_a_killed_process_loses_less_than_a_second_and_leaves_whole_lines(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        said = [writer.stdout.readline() for _ in range(300)]
        close_abandoned(tmp_path)
        assert closed_segments(tmp_path) == [], "its process still writes to it"
        os.kill(writer.pid, signal.SIGKILL)
        said += writer.stdout.readlines()
    said = [each for each in said if each.endswith("\n")]
    number, last = said[-1].split()
    PredictionLog(tmp_path, "hop-0").close()

    kept = lines_in(tmp_path)
    assert [line["request_id"] for line in kept] == [f"r-{n}" for n in range(len(kept))]
    lost_from = sum(int(each.split()[0]) <= len(kept) for each in said)
    assert float(last) - float(said[lost_from - 1].split()[1]) < 1
    assert len(kept) <= int(number) + 20
    assert not list(tmp_path.glob("*.open"))


@pytest.mark.parametrize("other", ["hop-0", "hop-1"])
def test_two_logs_in_one_folder_keep_out_of_each_others_way(
    tmp_path: Path, make_record: MakeRecord, other: str
) -> None:
    first, second = PredictionLog(tmp_path, "hop-0"), PredictionLog(tmp_path, other)
    for number in range(100):
        first.write(make_record(request_id=f"a-{number}"))
        second.write(make_record(request_id=f"b-{number}"))
    second.close()
    first.close()
    assert first.dropped + second.dropped == 0
    assert len({line["request_id"] for line in lines_in(tmp_path)}) == 200
