"""An errand beside the main loop: one at a time, its result or its error given once."""

from __future__ import annotations

import threading

import pytest

from tests.waiting import PATIENCE_S
from workers.aside import Aside


@pytest.fixture
def done():
    return threading.Semaphore(0)


def test_a_result_is_given_once_and_whoever_waits_is_woken(done):
    aside, may = Aside("test", done.release), threading.Event()
    assert not aside.busy and aside.results() == []
    aside.begin(lambda: may.wait(PATIENCE_S) and "result")
    assert aside.busy and aside.results() == []
    may.set()
    assert done.acquire(timeout=PATIENCE_S)
    assert aside.busy and aside.results() == ["result"]
    assert not aside.busy and aside.results() == []


def test_what_an_errand_raises_is_raised_where_its_result_is_asked_for(done):
    aside = Aside("test", done.release)
    aside.begin(lambda: 1 // 0)
    assert done.acquire(timeout=PATIENCE_S)
    with pytest.raises(ZeroDivisionError):
        aside.results()
    aside.begin(lambda: 2)
    assert done.acquire(timeout=PATIENCE_S) and aside.results() == [2]


def test_a_brief_wait_ends_with_the_errand_or_its_time(done):
    aside, may = Aside("test", done.release), threading.Event()
    aside.begin(lambda: may.wait(PATIENCE_S))
    aside.wait(0.01)
    assert aside.results() == []
    may.set()
    aside.wait(PATIENCE_S)
    assert aside.results() == [True]


def test_stopping_waits_for_the_errand_that_is_under_way_and_raises_nothing(done):
    aside, may, did = Aside("test", done.release), threading.Event(), []

    def errand():
        did.append(may.wait(PATIENCE_S))
        raise ZeroDivisionError

    aside.begin(errand)
    threading.Timer(0.05, may.set).start()
    aside.stop()
    assert did == [True]


def test_one_that_never_had_an_errand_stops_at_once(done):
    Aside("test", done.release).stop()
