from workers.acoustic.schedule import Waiting, first_to_run_dry


def choose(*jobs: Waiting, window_s: float = 1.0) -> str:
    [first] = first_to_run_dry(jobs, window_s)
    return first.job


def playing(job: str, dry_at: float) -> Waiting:
    return Waiting(job, since=0, heard_from=100, seconds=dry_at - 100)


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
        first = first_to_run_dry(jobs, 1.0)[0].job
        players[first] += 4.0
        clock += 1.0
    raise AssertionError(clock)


def test_nobody_waits():
    assert first_to_run_dry([], 1.0) == []


def test_ties_are_broken_the_same_way_everywhere():
    assert choose(fresh("b", 1), fresh("a", 1)) == choose(fresh("a", 1), fresh("b", 1)) == "a"
