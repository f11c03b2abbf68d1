"""Roles as threads: they stop together, and none dies in silence."""

import threading

import pytest

from compose.threads import RoleThreads
from compose.trouble import Trouble
from tests.waiting import PATIENCE_S


def waits(stop):
    stop.wait()


def test_all_end_when_stopped():
    stop = threading.Event()
    threads = RoleThreads(stop, on_death=lambda: pytest.fail("nobody died"))
    threads.start("a", waits)
    threads.start("b", waits)
    stop.set()
    threads.join(PATIENCE_S)


def test_a_thread_that_dies_stops_the_others_and_tells_why():
    stop, told, ended = threading.Event(), threading.Event(), threading.Event()
    threads = RoleThreads(stop, on_death=told.set)

    def dies(stop):
        raise RuntimeError("out of rows")

    def lives(stop):
        stop.wait()
        ended.set()

    threads.start("acoustic", lives)
    threads.start("talker", dies)
    with pytest.raises(Trouble, match="talker thread died: RuntimeError: out of rows"):
        threads.join(PATIENCE_S)
    assert told.is_set()
    assert ended.is_set()


@pytest.mark.parametrize("leave", [lambda stop: None, lambda stop: 75])
def test_a_thread_that_leaves_unasked_counts_as_dead(leave):
    threads = RoleThreads(threading.Event(), on_death=lambda: None)
    threads.start("sweeper", leave)
    with pytest.raises(Trouble, match="sweeper thread died: it returned"):
        threads.join(PATIENCE_S)


def test_even_an_exit_is_a_death():
    threads = RoleThreads(threading.Event(), on_death=lambda: None)

    def exits(stop):
        raise SystemExit(0)

    threads.start("talker", exits)
    with pytest.raises(Trouble, match="SystemExit"):
        threads.join(PATIENCE_S)


def test_a_thread_that_does_not_stop_in_time_is_named():
    stop, released = threading.Event(), threading.Event()
    threads = RoleThreads(stop, on_death=lambda: None)
    threads.start("talker", lambda stop: released.wait())
    stop.set()
    with pytest.raises(Trouble, match=r"did not stop within 0\.1 s: talker"):
        threads.join(0.1)
    released.set()
