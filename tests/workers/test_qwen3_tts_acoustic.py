"""Qwen3-TTS's acoustic stage: fixed calls, bytes that are the job's own, a reference that only the decoder hears."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.code2wav_checkpoint import TINY, write_speech_tokenizer
from workers.models.family import Dropped
from workers.models.qwen3_tts.acoustic import Call, SpeechAcoustic, Window, load_acoustic
from workers.models.qwen3_tts.code2wav import load_code2wav
from workers.models.qwen3_tts.code2wav_state import StateLayout

RAMP = (1, 2, 4, 8, 16)
HOP = 25
TOLERANCE = 1e-5  # of the RMS
HALF_STEP = 0.5 / 32_767  # what rounding to 16 bits may move a sample


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return write_speech_tokenizer(tmp_path_factory.mktemp("checkpoint"), TINY | {"sliding_window": 12})


@pytest.fixture(scope="module")
def acoustic(checkpoint, device) -> SpeechAcoustic:
    return load_acoustic(checkpoint, {"device": device})


@pytest.fixture(scope="module")
def padded(checkpoint, device) -> SpeechAcoustic:
    """Any window is padded to 4 or 10 frames, or to 25."""
    return load_acoustic(checkpoint, {"device": device, "lengths": [4, 10, 25], "padded": True, "batch": 3})


@pytest.fixture
def lengths(acoustic, monkeypatch) -> list[tuple[int, ...]]:
    """Shapes of the codes of each call of the decoder, as they come."""
    return noted_calls(acoustic, monkeypatch)


def noted_calls(acoustic: SpeechAcoustic, monkeypatch) -> list[tuple[int, ...]]:
    called, decode = [], acoustic._decoder.decode
    monkeypatch.setattr(
        acoustic._decoder, "decode", lambda codes, *rest: called.append(codes.shape) or decode(codes, *rest)
    )
    return called


def utterance(frames: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 64, (frames, 16)).astype(np.int16)


def never() -> None:
    pass


def windows(codes: np.ndarray, ramp: tuple[int, ...] = RAMP) -> list[np.ndarray]:
    whole = [*ramp, *[HOP] * (len(codes) // HOP + 1)]
    bounds = np.cumsum([0, *whole])
    return [codes[start:end] for start, end in pairwise(bounds) if start < len(codes)]


def play(acoustic: SpeechAcoustic, codes: np.ndarray, *, ramp=RAMP, reference=None, between=never) -> bytes:
    pcm, state, cut = [], {}, windows(codes, ramp)
    for index, window in enumerate(cut):
        sound, state = acoustic.window(
            window,
            index=index,
            last=index == len(cut) - 1,
            seed=5,
            state=state,
            check=never,
            reference=reference if index == 0 else None,
        )
        assert sound.dtype == np.int16 and sound.shape == (len(window) * 1920, 1)
        pcm.append(sound)
        between()
    assert state == {}
    return np.concatenate(pcm).tobytes()


def whole(acoustic: SpeechAcoustic, codes: np.ndarray) -> np.ndarray:
    """The utterance in one call, float32."""
    decoder = acoustic._decoder
    batch = torch.from_numpy(codes.astype(np.int64))[None].to(decoder.device)
    return decoder.decode(batch, decoder.init_state(1))[0][0].cpu().numpy()


def near(pcm: bytes, sound: np.ndarray) -> bool:
    """Whether these are the samples, but for rounding and what other shapes of calls make of the last bits."""
    difference = np.abs(np.frombuffer(pcm, np.int16) / 32_767 - sound)
    return len(difference) == len(sound) and bool(difference.max() < HALF_STEP + 5 * TOLERANCE * sound.std())


@pytest.mark.parametrize("frames", [1, 2, 3, 31, 32, 55, 56, 57, 90])
def test_windows_are_the_whole_utterance(acoustic, frames: int) -> None:
    codes = utterance(frames)
    assert near(play(acoustic, codes), whole(acoustic, codes))


def test_a_ramp_of_other_lengths_is_heard_as_well(acoustic) -> None:
    codes = utterance(60)
    assert near(play(acoustic, codes, ramp=(3, 7, 30)), whole(acoustic, codes))


def test_the_decoder_is_called_at_the_fixed_lengths_only(acoustic, lengths) -> None:
    play(acoustic, utterance(70))  # its last window has 14 frames
    assert lengths == [(1, n, 16) for n in (1, 2, 4, 8, 16, 25, 16)]
    lengths.clear()
    play(acoustic, utterance(40), ramp=(3, 7), reference=utterance(31, seed=1))
    assert [shape[1] for shape in lengths] == [25, 4, 2, 2, 1, 4, 2, 1, 25, 8]


@pytest.mark.parametrize("frames", [1, 2, 3, 31, 32, 55, 56, 57, 90])
@pytest.mark.parametrize("ramp", [RAMP, (3, 7, 30)])
def test_padded_windows_are_the_whole_utterance(padded, frames: int, ramp) -> None:
    """Each goes on after the frames that the one before it had, not after the padding."""
    codes = utterance(frames)
    assert near(play(padded, codes, ramp=ramp), whole(padded, codes))


def test_a_padded_utterance_goes_on_from_its_reference(padded) -> None:
    reference, codes = utterance(31, seed=1), utterance(40)
    heard = whole(padded, np.concatenate([reference, codes]))[31 * 1920 :]
    assert near(play(padded, codes, reference=reference), heard)


def test_padded_windows_of_many_lengths_share_calls(padded, monkeypatch) -> None:
    asked = []
    for seed, index in enumerate((0, 2, 1, 6, 5, 3)):  # 1, 4, 2, 4 as the last, 25 and 8 frames
        cut, state = begun(padded, seed, index)
        asked.append(Window(cut[index], index, index == len(cut) - 1, 0, state, never))
    alone = [padded.windows([window])[0] for window in asked]
    called = noted_calls(padded, monkeypatch)
    for one, together in zip(alone, padded.windows(asked), strict=True):
        assert together.pcm.tobytes() == one.pcm.tobytes()
        assert all(torch.equal(together.state[name], one.state[name]) for name in one.state)
    assert sorted(shape[1] for shape in called) == [4, 4, 10, 25]  # three windows to a call
    assert {padded.shape(frames, last=False) for frames in range(1, 5)} == {(4,)}


@pytest.mark.parametrize("frames", range(1, 80))
def test_calls_make_up_the_window_and_pad_only_the_last_of_the_last(acoustic, frames: int) -> None:
    calls = acoustic.calls(frames, last=False)
    assert sum(call.frames for call in calls) == frames and all(call.frames == call.length for call in calls)
    *before, end = acoustic.calls(frames, last=True)
    assert sum(call.frames for call in before) + end.frames == frames
    assert all(call == Call(25, 25) for call in before)
    assert end.frames <= end.length <= 25


def test_padding_is_not_heard(acoustic) -> None:
    """A last window of 9 frames has the bytes of the first 9 of 16."""
    codes = utterance(31 + 16)
    frames = 31 + 9
    assert windows(codes[:frames])[-1].shape == (9, 16)
    state = {}
    for index, window in enumerate(windows(codes[:31])):
        _, state = acoustic.window(window, index=index, last=False, seed=5, state=state, check=never)
    full, _ = acoustic.window(codes[31:], index=5, last=True, seed=5, state=state, check=never)
    short, after = acoustic.window(codes[31:frames], index=5, last=True, seed=5, state=state, check=never)
    assert short.tobytes() == full[: 9 * 1920].tobytes()
    assert after == {}


def test_other_utterances_in_between_change_nothing(acoustic) -> None:
    codes, other = utterance(70), utterance(40, seed=1)
    expected = play(acoustic, codes)
    assert play(acoustic, codes, between=lambda: play(acoustic, other, reference=codes)) == expected


def test_a_second_model_gives_the_same_bytes(checkpoint, acoustic, device) -> None:
    again = load_acoustic(checkpoint, {"device": device})
    assert play(again, utterance(70)) == play(acoustic, utterance(70))


def test_a_window_done_again_gives_the_same_bytes_and_leaves_its_state(acoustic) -> None:
    codes = utterance(3)
    _, state = acoustic.window(codes[:1], index=0, last=False, seed=5, state={}, check=never)
    before = {name: entry.clone() for name, entry in state.items()}
    first, _ = acoustic.window(codes[1:], index=1, last=False, seed=5, state=state, check=never)
    again, _ = acoustic.window(codes[1:], index=1, last=False, seed=5, state=state, check=never)
    assert first.tobytes() == again.tobytes()
    assert all(torch.equal(state[name], before[name]) for name in before)


def begun(acoustic: SpeechAcoustic, seed: int, windows_played: int) -> tuple[list[np.ndarray], dict]:
    """An utterance's windows, and the state after the first ones."""
    cut, state = windows(utterance(60, seed)), {}
    for index in range(windows_played):
        _, state = acoustic.window(cut[index], index=index, last=False, seed=5, state=state, check=never)
    return cut, state


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_windows_decoded_together_have_the_bytes_that_they_have_alone(checkpoint, device, dtype: str) -> None:
    acoustic = load_acoustic(checkpoint, {"device": device, "batch": 3, "dtype": dtype})
    asked = []
    for seed, index in enumerate((3, 0, 5, 3, 3, 3, 6)):  # four of one length, in two calls
        cut, state = begun(acoustic, seed, index)
        reference = utterance(30, seed=9) if index == 0 else None
        asked.append(Window(cut[index], index, index == len(cut) - 1, 0, state, never, reference))
    for window, together in zip(asked, acoustic.windows(asked), strict=True):
        [alone] = acoustic.windows([window])
        assert together.pcm.tobytes() == alone.pcm.tobytes()
        assert together.state.keys() == alone.state.keys()
        assert all(torch.equal(together.state[name], alone.state[name]) for name in alone.state)
        assert bool(alone.state) != window.last


@pytest.mark.parametrize("number", [0, 1], ids=["sound", "state"])
def test_a_batch_whose_rows_get_other_bytes_by_their_place_is_refused(checkpoint, device, number) -> None:
    acoustic = load_acoustic(checkpoint, {"device": device, "batch": 3})
    acoustic.warm_up()
    step = acoustic._steps[4]

    def by_place(codes, *packed):
        outcome = step(codes, *packed)
        outcome[number][2].view(-1)[-1] += 1
        return outcome

    acoustic._steps[4] = by_place
    with pytest.raises(ValueError, match=r"batch 3: on this device, a call of 4 frames gives equal rows different"):
        acoustic.warm_up()


def test_what_is_kept_of_a_batch_is_a_row(checkpoint, device) -> None:
    acoustic = load_acoustic(checkpoint, {"device": device, "batch": 3})
    _, state = begun(acoustic, 0, 1)
    assert all(rows.untyped_storage().nbytes() == rows.nbytes for rows in state.values())


def test_a_dropped_window_harms_no_other(checkpoint, device) -> None:
    acoustic = load_acoustic(checkpoint, {"device": device, "batch": 2})

    def dropped() -> None:
        raise Dropped

    asked = [Window(utterance(2, seed), 0, True, 0, {}, dropped if seed == 1 else never) for seed in range(3)]
    first, second, third = acoustic.windows(asked)
    assert second is None
    for seed, decoded in ((0, first), (2, third)):
        assert decoded.pcm.tobytes() == play(acoustic, utterance(2, seed), ramp=(2,))


def test_a_packed_state_unpacks_to_itself(checkpoint, device) -> None:
    decoder = load_code2wav(checkpoint, device, torch.bfloat16)
    _, state = decoder.decode(torch.randint(64, (3, 20, 16), device=device), decoder.init_state(3))
    layout = StateLayout(decoder.init_state(1))
    packed = layout.pack(state)
    assert layout.dtypes == tuple(rows.dtype for rows in packed) and len(packed) == 3
    again = layout.unpack(packed)
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], state[name]) for name in state)


def test_the_input_is_not_written_to(acoustic) -> None:
    codes, reference = utterance(40), utterance(27, seed=1)
    codes.flags.writeable = reference.flags.writeable = False
    play(acoustic, codes, reference=reference)


@pytest.mark.parametrize("frames", [1, 24, 25, 27, 70])
def test_an_utterance_goes_on_from_its_reference(acoustic, frames: int) -> None:
    reference, codes = utterance(frames, seed=1), utterance(40)
    pcm = play(acoustic, codes, reference=reference)
    assert near(pcm, whole(acoustic, np.concatenate((reference, codes)))[frames * 1920 :])
    assert not near(pcm, whole(acoustic, codes))


def test_a_dropped_job_ends_between_calls(acoustic, lengths) -> None:
    def dropped() -> None:
        if len(lengths) == 2:
            raise Dropped

    with pytest.raises(Dropped):
        acoustic.window(
            utterance(1), index=0, last=True, seed=5, state={}, check=dropped, reference=utterance(75, seed=1)
        )
    assert len(lengths) == 2


@pytest.mark.parametrize(
    ("codes", "index", "reference", "message"),
    [
        (utterance(3).astype(np.int64), 0, None, "codes must be .* int16"),
        (utterance(3)[:, :15], 0, None, "codes must be"),
        (utterance(0), 0, None, "codes must be"),
        (utterance(3) + np.int16(60), 0, None, "from 0 to 63"),
        (utterance(3) - np.int16(60), 0, None, "from 0 to 63"),
        (utterance(3), 0, utterance(3)[:, :8], "reference must be"),
        (utterance(3), 0, utterance(3) + np.int16(60), "reference must be from 0"),
        (utterance(3), 1, None, "needs its predecessor's state"),
        (utterance(3), 1, utterance(3), "comes with window 0"),
    ],
)
def test_what_does_not_fit_is_refused(acoustic, codes, index: int, reference, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        acoustic.window(codes, index=index, last=False, seed=5, state={}, check=never, reference=reference)


def test_a_first_window_takes_no_state(acoustic) -> None:
    _, state = acoustic.window(utterance(1), index=0, last=False, seed=5, state={}, check=never)
    with pytest.raises(ValueError, match="needs no state"):
        acoustic.window(utterance(1), index=0, last=False, seed=5, state=state, check=never)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocoder_dtype": "float32"}, "unknown acoustic settings: vocoder_dtype"),
        ({"dtype": "float16"}, "dtype must be one of"),
        ({"dtype": "tf32"}, "tf32 is for CUDA"),
        ({"lengths": [2, 4]}, "1 among them"),
        ({"lengths": [0, 4], "padded": True}, "whole numbers from 1, got"),
        ({"lengths": 25}, "a list of whole numbers"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"batch": "8"}, "batch must be a whole number"),
    ],
)
def test_settings_are_checked(checkpoint, settings, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_acoustic(checkpoint, settings)
