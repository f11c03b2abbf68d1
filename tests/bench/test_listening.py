"""What a listener lives through, by hand-made arrivals."""

import pytest

from producer.listening import Arrival, longest_gap, percentile, percentiles, underrun


def arrivals(*pairs):
    return [Arrival(at, plays) for at, plays in pairs]


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([3.0], 0.99, 3.0),
        ([1.0, 2.0], 0.5, 1.5),
        ([4.0, 1.0, 3.0, 2.0], 0.5, 2.5),
        ([0.0, 10.0], 0.95, 9.5),
        (list(range(101)), 0.95, 95),
        ([5.0, 1.0], 0.0, 1.0),
        ([5.0, 1.0], 1.0, 5.0),
    ],
)
def test_percentiles_lie_between_neighbours(values, share, expected):
    assert percentile(values, share) == pytest.approx(expected)


def test_percentiles_of_nothing_are_none():
    assert percentiles([]) == {"p50": None, "p95": None, "p99": None}


def test_sound_that_comes_in_time_leaves_no_silence():
    assert underrun(arrivals((1.0, 4.0), (4.9, 4.0), (9.0, 4.0))) == 0


def test_silence_is_the_wait_for_what_should_be_playing():
    assert underrun(arrivals((1.0, 2.0), (4.5, 2.0))) == pytest.approx(1.5)


def test_a_wait_puts_off_everything_after_it():
    # plays 0-1, waits to 3, plays 3-4, and what comes at 3.9 is in time though the song is 2 s behind
    assert underrun(arrivals((0.0, 1.0), (3.0, 1.0), (3.9, 1.0))) == pytest.approx(2.0)


def test_sound_ahead_of_time_is_kept_for_later():
    assert underrun(arrivals((0.0, 1.0), (0.1, 10.0), (10.9, 1.0))) == pytest.approx(0.0)


def test_waiting_for_the_first_sound_is_not_underrun():
    assert underrun(arrivals((100.0, 1.0))) == 0
    assert underrun([]) == 0


def test_longest_gap():
    assert longest_gap(arrivals((1.0, 1), (1.5, 1), (4.0, 1), (4.2, 1))) == pytest.approx(2.5)
    assert longest_gap(arrivals((1.0, 1))) == 0
