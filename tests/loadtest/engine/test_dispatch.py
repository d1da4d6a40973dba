"""Arrivals come when they are due, whatever became of those before."""

import time

import gevent
import pytest

from loadtest.engine.dispatch import Dispatcher

MS = 1_000_000


def test_each_arrival_is_handed_out_once_in_order_and_never_early() -> None:
    intended = [n * 2 * MS for n in range(50)]
    dispatcher = Dispatcher(intended)
    taken: list[tuple[int, int]] = []

    def user() -> None:
        while True:
            place = dispatcher.take()
            taken.append((place, time.monotonic_ns() - dispatcher.start))

    users = [gevent.spawn(user) for _ in range(4)]
    dispatcher.begin(time.monotonic_ns() + 5 * MS)
    gevent.sleep(0.25)
    gevent.killall(users)
    dispatcher.stop()
    assert [place for place, _ in taken] == list(range(50))
    assert all(when >= intended[place] for place, when in taken)
    assert dispatcher.all_due


def test_a_user_that_hangs_holds_up_no_arrival() -> None:
    dispatcher = Dispatcher([0, 10 * MS, 20 * MS, 30 * MS])
    taken: list[int] = []

    def hangs() -> None:
        dispatcher.take()
        gevent.sleep(10)

    def works() -> None:
        while True:
            taken.append(dispatcher.take())

    users = [gevent.spawn(hangs)]
    gevent.sleep(0)
    users.append(gevent.spawn(works))
    dispatcher.begin(time.monotonic_ns())
    gevent.sleep(0.1)
    gevent.killall(users)
    dispatcher.stop()
    assert taken == [1, 2, 3]


def test_what_finds_no_idle_user_waits_and_is_taken_back_at_the_end() -> None:
    dispatcher = Dispatcher([0, 0, 0, 5 * MS])
    dispatcher.begin(time.monotonic_ns())
    gevent.sleep(0.05)
    assert dispatcher.waiting == dispatcher.handed_out == 4
    assert dispatcher.take() == 0
    assert dispatcher.untaken() == [1, 2, 3]
    assert dispatcher.waiting == 0
    dispatcher.stop()
    dispatcher.stop()


def test_nothing_comes_after_the_stop() -> None:
    dispatcher = Dispatcher([0, 60 * MS])
    dispatcher.begin(time.monotonic_ns())
    gevent.sleep(0.02)
    dispatcher.stop()
    gevent.sleep(0.1)
    assert dispatcher.handed_out == 1
    assert not dispatcher.all_due


@pytest.mark.parametrize("count", [0, 1])
def test_a_share_may_be_small_or_empty(count: int) -> None:
    dispatcher = Dispatcher([0] * count)
    dispatcher.begin(time.monotonic_ns())
    gevent.sleep(0.01)
    assert dispatcher.all_due
    assert dispatcher.waiting == count
    dispatcher.stop()
