"""A song's bits depend on the song alone: not on its slot, its company, when others come and go, or a takeover."""

import random

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.songs import admit, arrays, finish, song, sung
from tests.tiny_checkpoint import tiny_checkpoint
from workers.models.minimax_music3.talker import load_talker
from workers.runners.torch_runner import TorchRunner
from workers.talker.frames import FrameHistory
from workers.talker.rows import DoesNotFit, NoFreeRows, RowSlots, take_rows

MAX_JOBS = 16


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def talker(request, device):
    if device == "cpu" and request.param == "bfloat16":
        pytest.skip("bfloat16 is for GPUs")
    torch.set_num_threads(1)
    return load_talker(tiny_checkpoint(), {"max_jobs": MAX_JOBS, "device": device, "dtype": request.param})


def new_runner(talker, **kwargs) -> TorchRunner:
    return TorchRunner(talker, **{"max_jobs": MAX_JOBS, "max_model_len": 1024} | kwargs)


@pytest.fixture(scope="module")
def alone(talker):
    """Every song as it is when nobody else sings."""

    def sing(seed: int) -> tuple[bytes, bytes, str | None]:
        runner = new_runner(talker)
        return sung(finish(runner, admit(runner, talker, song(seed))))

    return {seed: sing(seed) for seed in range(16)}


def test_songs_differ(alone):
    assert len({codes for codes, _, _ in alone.values()}) == len(alone)


def test_a_full_batch(talker, alone):
    runner = new_runner(talker)
    songs = [admit(runner, talker, song(seed)) for seed in reversed(range(16))]
    for history in songs:
        assert sung(finish(runner, history)) == alone[history.request.seed]


def test_songs_that_come_and_go(talker, alone):
    rng = random.Random(7)
    runner = new_runner(talker, chunks_a_step=1)
    waiting = [song(seed) for seed in range(16)]
    rng.shuffle(waiting)
    # Passers-by take slots, and leave in the middle: their rows hold what they left behind.
    passers = iter(range(100, 200))
    singing: list[FrameHistory] = []
    while waiting or singing:
        if waiting and runner.free_jobs and rng.random() < 0.3:
            singing.append(admit(runner, talker, waiting.pop()))
        if runner.free_jobs > 4 and rng.random() < 0.2:
            admit(runner, talker, song(next(passers)))
        runner.step()
        for history in [history for history in singing if history.reason]:
            runner.free(history.job)
            singing.remove(history)
            assert sung(history) == alone[history.request.seed]
        for job in [f"job_{seed}" for seed in range(100, 200) if rng.random() < 0.02]:
            runner.free(job)


def test_a_row_s_length_and_prefill_pace_change_nothing(talker, alone):
    runner = new_runner(talker, max_model_len=517, chunks_a_step=1)
    assert sung(finish(runner, admit(runner, talker, song(7)))) == alone[7]


@pytest.mark.parametrize("seed", [3, 6])
def test_a_takeover_repeats_the_log_and_goes_on(talker, alone, seed):
    """Logged codes are forced; the conditioning of frames that were not sent comes out as it was."""
    codes, conditioning = arrays(alone[seed])
    rng = random.Random(seed)
    for _ in range(4):
        cut = rng.randrange(1, len(codes) + 1)
        sent = rng.randrange(cut)
        runner = new_runner(talker)
        company = admit(runner, talker, song(90 + seed))
        for _ in range(rng.randrange(12)):
            runner.step()
        history = finish(runner, admit(runner, talker, song(seed, forced=codes[:cut], sent=sent)))
        assert np.array_equal(np.stack(history.codes), codes)
        assert np.stack(history.waiting).tobytes() == conditioning[sent:].tobytes()
        assert history.reason == alone[seed][2]
        assert company.codes


def test_a_repeated_code_is_taken_even_where_it_would_not_be_drawn(talker):
    forced = np.full((5, 8), 1000, np.int16)
    history = admit(runner := new_runner(talker), talker, song(1, forced=forced, sent=4))
    while history.draw < 5:
        runner.step()
    assert np.array_equal(np.stack(history.codes[:5]), forced)


def test_repeating_what_is_sent_skips_the_depth_decoder(talker, monkeypatch):
    calls = []
    forward = type(talker.depth).forward
    monkeypatch.setattr(type(talker.depth), "forward", lambda *args: calls.append(1) or forward(*args))
    history = admit(runner := new_runner(talker), talker, song(1, forced=np.full((5, 8), 9, np.int16), sent=4))
    while history.draw < 5:
        runner.step()
    assert not calls
    runner.step()
    assert len(calls) == 7


def test_prefill_leaves_running_songs_their_steps(talker):
    runner = new_runner(talker, chunks_a_step=1)
    running = admit(runner, talker, song(0))
    runner.step()
    for seed in (7, 15):  # three chunks each
        admit(runner, talker, song(seed))
    for step in range(2, 8):
        assert running.draw == step - 1
        runner.step()


def test_rows_are_bound_and_freed_as_pairs(talker):
    runner = new_runner(talker, max_jobs=2)
    assert runner.idle and runner.free_jobs == 2
    admit(runner, talker, song(1))
    admit(runner, talker, song(2))
    assert runner.free_jobs == 0 and not runner.idle
    with pytest.raises(NoFreeRows):
        admit(runner, talker, song(3))
    assert runner.free("job_1") == 2
    assert runner.free("job_1") == 0
    assert runner.free_jobs == 1
    admit(runner, talker, song(3))
    runner.free("job_2")
    with pytest.raises(ValueError, match="already"):
        admit(runner, talker, song(3))


def test_an_ended_song_is_left_alone(talker):
    runner = new_runner(talker, max_jobs=2)
    short, long = admit(runner, talker, song(1, frames=2)), admit(runner, talker, song(2))
    while short.reason is None:
        assert short in runner.step()
    assert short not in runner.step()
    assert short.frames == 2 and long.draw > short.draw


def test_the_end_of_the_positions_ends_the_song(talker):
    """The frames that exist are delivered, and the reason says so."""
    history = song(1, frames=1000)
    positions = len(talker.prompts(history.request)[0]) + 1 + 10
    runner = new_runner(talker, max_model_len=positions)
    finish(runner, admit(runner, talker, history))
    assert (history.frames, history.reason) == (10, "length")


def test_a_prompt_that_leaves_no_room_is_refused(talker):
    runner = new_runner(talker, max_model_len=30)
    with pytest.raises(DoesNotFit, match="max_model_len is 30"):
        admit(runner, talker, song(7))
    assert runner.idle


def test_the_profile_names_what_changes_bits(talker):
    profile = new_runner(talker).profile()
    assert profile != new_runner(talker, max_jobs=4).profile()
    assert profile != new_runner(talker, prefill_chunk=32).profile()
    assert profile == new_runner(talker, max_model_len=512, chunks_a_step=1).profile()


@pytest.mark.parametrize("shape", [(64, 192), (192, 64), (64, 16_385), (64, 1024)])
def test_a_product_s_row_does_not_depend_on_its_place(shape):
    """What the runner stands on: at one shape, a row's bits are its own."""
    inner, outer = shape
    generator = torch.Generator().manual_seed(0)
    weight, row = torch.randn(outer, inner, generator=generator), torch.randn(inner, generator=generator)
    seen = set()
    for place in range(32):
        batch = torch.randn(32, inner, generator=generator)
        batch[place] = row
        seen.add(F.linear(batch, weight)[place].numpy().tobytes())
    assert len(seen) == 1


def test_row_slots_take_the_lowest():
    slots = RowSlots(3, rows=2)
    songs = [song(seed) for seed in range(4)]
    assert [slots.bind(history) for history in songs[:3]] == [0, 1, 2]
    assert slots.release("job_1") == 2 and slots.slot("job_1") is None
    assert slots.bind(songs[3]) == 1
    assert [(slot, history.job) for slot, history in slots] == [(0, "job_0"), (1, "job_3"), (2, "job_2")]


def test_a_job_that_the_model_refuses_leaves_no_trace() -> None:
    class Refuses:
        def bind(self, *_: object) -> None:
            raise ValueError("temperature -1")

    slots = RowSlots(max_jobs=2, rows=2)
    with pytest.raises(ValueError, match="temperature -1"):
        take_rows(slots, Refuses(), song(0), [[1], [1]])
    assert slots.free == 2
