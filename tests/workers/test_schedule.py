import random

import pytest

from workers.acoustic.schedule import Batches, Waiting

ONE = Batches(1, gather_s=9.0)
THREE = Batches(3, gather_s=0.25)


def choose(*jobs: Waiting, window_s: float = 1.0) -> str:
    [first], _ = ONE.next(jobs, now=0, window_s=window_s, expected=100)
    return first.job


def names(batches: Batches, jobs: list[Waiting], *, now: float = 100.0, expected: int = 100) -> tuple[str, float]:
    batch, wait = batches.next(jobs, now=now, window_s=0.5, expected=expected)
    return "".join(job.job for job in batch), wait


def playing(job: str, dry_at: float, *, shape: int = 0, ready_at: float = 100.0) -> Waiting:
    return Waiting(job, since=0, heard_from=100, seconds=dry_at - 100, ready_at=ready_at, shape=shape)


def fresh(job: str, since: float) -> Waiting:
    return Waiting(job, since=since, heard_from=None, seconds=0)


def test_whoever_runs_dry_first():
    assert choose(playing("a", 110), playing("b", 104), playing("c", 107)) == "b"


def test_a_newcomer_comes_before_a_full_buffer_and_after_an_empty_one():
    assert choose(playing("full", 110), fresh("new", 105)) == "new"
    assert choose(playing("empty", 105.5), fresh("new", 105)) == "empty"


def test_newcomers_in_the_order_of_their_coming():
    assert choose(fresh("late", 3), fresh("early", 2)) == "early"


def test_a_newcomer_is_not_put_off_for_ever():
    """However many play, their buffers grow with every window that they get."""
    players = {name: 4.0 for name in "abc"}
    clock = 0.0
    for _ in range(20):
        jobs = [Waiting(name, 0, 0.0, seconds) for name, seconds in players.items()]
        if choose(*jobs, fresh("new", 0)) == "new":
            return
        players[choose(*jobs)] += 4.0
        clock += 1.0
    raise AssertionError(clock)


def test_nobody_waits():
    assert ONE.next([], now=0, window_s=1.0, expected=0) == ([], 0.0)


def test_ties_are_broken_the_same_way_everywhere():
    assert choose(fresh("b", 1), fresh("a", 1)) == choose(fresh("a", 1), fresh("b", 1)) == "a"


def test_a_full_batch_goes_at_once_with_the_most_urgent():
    assert names(THREE, [playing(name, 200 - ord(name)) for name in "abcd"]) == ("dcb", 0.0)


def test_windows_of_one_shape_go_together():
    a, c, d = (playing(name, 110 + n, shape=1) for n, name in enumerate("acd"))
    b = playing("b", 110.5, shape=2)
    assert names(THREE, [a, b, c, d]) == ("acd", 0.0)


def test_a_batch_that_has_room_waits_for_more_since_its_first_window_was_ready():
    assert names(THREE, [playing("a", 150)]) == ("", 0.25)
    jobs = [playing("a", 150, ready_at=99.875), playing("b", 150)]
    assert names(THREE, jobs) == ("", 0.125)
    assert names(THREE, jobs, now=100.125) == ("ab", 0.0)


@pytest.mark.parametrize(("dry_at", "wait"), [(101.125, 0.125), (101.0, 0.0), (90.0, 0.0)])
def test_no_listener_runs_dry_for_others(dry_at, wait):
    assert names(THREE, [playing("a", dry_at)])[1] == wait


def test_a_newcomer_does_not_wait():
    assert names(THREE, [fresh("a", 100.0)]) == ("a", 0.0)


def test_where_few_are_expected_nobody_waits():
    assert names(THREE, [playing("a", 150)], expected=2) == ("a", 0.0)


def test_a_full_batch_does_not_wait_behind_one_that_has_room():
    waits = playing("w", 110, shape=1)
    assert names(THREE, [waits, *(playing(name, 120, shape=2) for name in "abc")]) == ("abc", 0.0)


# --- holding back -----------------------------------------------------------------------------------------------------

HOLDS = Batches(1, gather_s=9.0, hold_s=0.25)


def held(job: Waiting, *dry_at: float, now: float = 100.0) -> tuple[str, float]:
    batch, wait = HOLDS.next([job], now=now, window_s=0.125, expected=1, dry_at=dry_at)
    return "".join(job.job for job in batch), wait


def test_a_window_that_nobody_needs_is_held_back_for_a_listener_who_would_run_dry_in_it():
    assert held(playing("full", 103), 100.125) == ("", 0.125), "until he runs dry: then it is too late for him"
    assert held(playing("full", 103), 100.3125) == ("", 0.25), "and for no longer than holding back takes"
    assert held(playing("full", 103), 100.3125, now=100.25) == ("full", 0.0)


@pytest.mark.parametrize("dry_at", [99.0, 100.0, 100.375, 104.0])
def test_nothing_is_held_back_for_who_is_dry_already_or_will_not_be(dry_at):
    assert held(playing("full", 103), dry_at) == ("full", 0.0)


def test_a_window_that_somebody_needs_is_not_held_back():
    assert held(playing("empty", 100.25), 100.125) == ("empty", 0.0)
    assert held(fresh("new", 100.0), 100.125) == ("new", 0.0)


def test_nothing_is_held_back_where_no_time_for_it_is_set():
    batch, _ = ONE.next([playing("full", 103)], now=100.0, window_s=0.125, expected=0, dry_at=[100.1])
    assert [job.job for job in batch] == ["full"]


def test_a_wait_that_is_over_ends_in_a_batch():
    """Whatever waits: after as long as it was told to wait, something is decoded."""
    dice = random.Random(3)
    for _ in range(300):
        jobs = [
            playing(f"{n}", 100 + dice.random() * 4, shape=dice.randrange(3), ready_at=100 - dice.random() / 2)
            for n in range(dice.randrange(1, 8))
        ]
        batch, wait = THREE.next(jobs, now=100.0, window_s=0.5, expected=9)
        assert bool(batch) == (wait == 0)
        assert batch or THREE.next(jobs, now=100.0 + wait + 1e-9, window_s=0.5, expected=9)[0]
