"""What a batch curve says, and what the queue delay does with it."""

from pathlib import Path

import numpy as np
import pytest

from serving.capacity.batching import BatchCurve, batched, curve_of, read_curve
from serving.capacity.queue_delay import Batcher, dial, latencies, simulate
from serving.errors import InputError

TEXTBOOK = curve_of({1: 3, 16: 4}, "textbook")
FLAT = curve_of({1: 2, 64: 2}, "flat")


def test_sixteen_at_once_are_twelve_times_as_many() -> None:
    assert TEXTBOOK.rate_rps(1) == pytest.approx(333.33, abs=0.01)
    assert TEXTBOOK.rate_rps(16) == 4000
    assert TEXTBOOK.gain == pytest.approx(12)


@pytest.mark.parametrize(("batch", "ms"), [(1, 3), (8.5, 3.5), (16, 4), (31, 5)])
def test_between_and_beyond_measured_sizes_times_lie_on_lines(batch: int, ms: float) -> None:
    assert TEXTBOOK.ms(batch) == pytest.approx(ms)


def test_one_point_alone_is_taken_to_be_without_gain() -> None:
    curve = curve_of({1: 5}, "one")
    assert [curve.ms(size) for size in (1, 2, 4)] == [5, 10, 20]


def test_the_batch_is_as_large_as_the_slo_lets_it_be() -> None:
    curve = curve_of({1: 3, 16: 4, 64: 16}, "steeper")
    assert curve.best_batch(64, 100) == 16
    assert curve.best_batch(64, 3.5) == 8
    assert curve.best_batch(64, 2.9) is None


def test_a_replica_waits_for_a_running_batch_and_for_its_own() -> None:
    served = batched(TEXTBOOK, 16, 2, queue_ms=3, latency_ms=11)
    assert served is not None
    assert (served.batch, served.rps) == (16, 8000)
    assert batched(TEXTBOOK, 16, 2, queue_ms=3, latency_ms=8.9) is None


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "is no batch curve"),
        ("[]", "is no batch curve"),
        ("{}", "is no batch curve"),
        ('{"1": "x"}', "is no batch curve"),
        ('{"0": 3}', "is no batch curve"),
        ('{"1": Infinity}', "is no batch curve"),
        ('{"1": NaN}', "is no batch curve"),
        ('{"2": 3}', "starts at batch=2, not 1"),
        ('{"1": 3, "8": 2}', "batch=8 takes 2 ms, less than batch=1 with 3"),
    ],
)
def test_a_file_that_is_no_curve_is_refused(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "batch_curve.json"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_curve(path)
    assert expected in str(caught.value)


def test_a_curve_is_read(tmp_path: Path) -> None:
    path = tmp_path / "batch_curve.json"
    path.write_text('{"16": 4, "1": 3}')
    assert read_curve(path).points == TEXTBOOK.points


@pytest.mark.parametrize(("rate", "delay"), [(200, 5000), (1000, 2000), (3000, 4000)])
def test_with_an_idle_instance_a_batch_is_one_and_what_comes_in_the_delay(
    rate: float, delay: int
) -> None:
    found = simulate(Batcher(FLAT, 64, (), 64), rate, delay, seed=3)
    assert found.fill == pytest.approx(1 + rate * delay / 1e6, rel=0.02)
    assert found.p99_ms <= delay / 1000 + 2 + 1e-9


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_without_batching_waits_are_those_of_one_server_with_fixed_times(load: float) -> None:
    # M/D/1: the mean time in the system is s + load x s / (2 (1 - load)); 4 ms each.
    curve, service = curve_of({1: 4}, "fixed"), 4.0
    server = Batcher(curve, 1, (), 1)
    times = [latencies(server, load * 250, 0, seed, 100_000).latency_ms.mean() for seed in range(4)]
    expected = service + load * service / (2 * (1 - load))
    assert np.mean(times) == pytest.approx(expected, rel=0.03)


def test_preferred_sizes_are_sent_as_soon_as_they_are_reached() -> None:
    found = simulate(Batcher(FLAT, 64, (8,), 64), 4000, 10_000, seed=1)
    assert found.fill == pytest.approx(8, rel=0.01)


def test_of_many_that_wait_the_largest_preferred_size_is_sent() -> None:
    # 20 come while a batch runs, and then ever more: 8 and 16 are sizes that are sent, 20 is not.
    slow = curve_of({1: 50, 64: 50}, "slow")
    for preferred, size in (((8,), 8), ((8, 16), 16)):
        found = simulate(Batcher(slow, 64, preferred, 1), 400, 0, seed=1, requests=4000)
        assert found.fill == pytest.approx(size, rel=0.02)


def test_no_batch_is_larger_than_the_largest() -> None:
    found = simulate(Batcher(FLAT, 4, (), 1), 1900, 3000, seed=1)
    assert found.fill <= 4


def test_the_same_seed_gives_the_same_dial_and_waiting_spares_work() -> None:
    batcher = Batcher(curve_of({1: 3, 16: 4, 64: 8}, "x"), 64, (16, 64), 2)
    one, two = (dial(batcher, 4000, 50, seed=5) for _ in range(2))
    assert one == two
    work = [setting.busy_ratio for setting in one.settings]
    assert work[-1] < work[0]
    assert one.recommended is not None
    assert one.recommended.p99_ms <= 40


def test_no_position_is_recommended_where_none_keeps_the_slo() -> None:
    assert dial(Batcher(TEXTBOOK, 16, (), 1), 6000, 10, seed=1).recommended is None


def test_a_position_that_uses_up_the_slo_is_not_tried() -> None:
    found = dial(Batcher(FLAT, 64, (), 1), 100, 4, seed=1)
    assert max(setting.delay_microseconds for setting in found.settings) < 4000


def test_curves_are_plain_data() -> None:
    assert BatchCurve.model_validate(TEXTBOOK.model_dump()) == TEXTBOOK
