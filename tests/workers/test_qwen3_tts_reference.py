"""Reference audio: what is made of a recording, which checkpoints can, and what resampling keeps."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from workers.checkpoints import CheckpointError
from workers.models.qwen3_tts.checkpoint import make_checkpoint
from workers.models.qwen3_tts.reference import ReferenceEncoder
from workers.models.qwen3_tts.resampling import resample
from workers.models.qwen3_tts.speech_encoder import SpeechEncoderConfig

RATE = 24_000


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "checkpoint"
    make_checkpoint(folder, "tiny-base", seed=1)
    return folder


@pytest.fixture(scope="module")
def encoder(checkpoint) -> ReferenceEncoder:
    return ReferenceEncoder(checkpoint, {})


def tone(hertz: float, seconds: float = 1.0, rate: int = RATE) -> np.ndarray:
    return (0.3 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def noise(samples: int, seed: int = 0) -> np.ndarray:
    return (0.1 * np.random.default_rng(seed).standard_normal(samples)).astype(np.float32)


@pytest.mark.parametrize("samples", [12_000, 12_001, 15_359, 15_360, 15_361, 48_000])
def test_every_begun_frame_has_codes(encoder, samples):
    reference = encoder.encode(noise(samples), RATE, with_codes=True)
    assert reference.codes.shape == (-(-samples // 1_920), 16)
    assert reference.codes.dtype == np.int16 and reference.codes.min() >= 0 and reference.codes.max() < 2_048
    assert reference.speaker.shape == (64,) and reference.speaker.dtype == np.float32


def test_a_voice_alone_has_no_codes(encoder):
    assert encoder.encode(noise(12_000), RATE, with_codes=False).codes is None


def test_the_same_recording_gives_the_same_bits_whatever_came_between(encoder, checkpoint):
    first = encoder.encode(noise(30_000), 44_100, with_codes=True)
    other = encoder.encode(noise(50_000, seed=1), RATE, with_codes=True)
    for again in (encoder, ReferenceEncoder(checkpoint, {})):
        second = again.encode(noise(30_000), 44_100, with_codes=True)
        assert second.speaker.tobytes() == first.speaker.tobytes()
        assert second.codes.tobytes() == first.codes.tobytes()
    assert not np.allclose(first.speaker, other.speaker, atol=1e-3)


def test_codes_hear_nothing_that_is_yet_to_come(encoder):
    whole = noise(48_000)
    begun = encoder.reference_codes(whole[: 10 * 1_920], RATE)
    assert (encoder.reference_codes(whole, RATE)[:10] == begun).mean() > 0.99  # a shape's bits may tip a near draw
    assert not np.array_equal(encoder.reference_codes(np.roll(whole, 960), RATE)[:10], begun)


def test_a_recording_is_left_as_it_was(encoder):
    pcm = noise(12_000)
    pcm.flags.writeable = False
    encoder.encode(pcm, RATE, with_codes=True)
    assert np.array_equal(pcm, noise(12_000))


@pytest.mark.parametrize("size", ["tiny", "tiny-design"])
def test_a_checkpoint_that_clones_no_voices_says_so(tmp_path, size):
    make_checkpoint(tmp_path, size, seed=1)
    with pytest.raises(CheckpointError, match=r"no speaker_encoder weights.*(custom_voice|voice_design).*Base"):
        ReferenceEncoder(tmp_path, {})


def test_a_speech_tokenizer_without_an_encoder_says_so(checkpoint, tmp_path):
    changed(checkpoint, tmp_path, "speech_tokenizer", lambda tensors: drop(tensors, "encoder."))
    with pytest.raises(CheckpointError, match="no encoder weights"):
        ReferenceEncoder(tmp_path / "changed", {})


@pytest.mark.parametrize(
    ("component", "change", "complaint"),
    [
        (".", lambda t: t.pop("speaker_encoder.fc.bias"), "speaker encoder.*missing: fc.bias"),
        (".", lambda t: t.update({"speaker_encoder.new": torch.ones(1)}), "speaker encoder.*unexpected: new"),
        (
            "speech_tokenizer",
            lambda t: drop(t, "encoder.quantizer.acoustic_residual_vector_quantizer.layers.30."),
            "missing: quantizer.acoustic_residual_vector_quantizer.layers.30.codebook",
        ),
        (
            "speech_tokenizer",
            lambda t: t.update({"encoder.downsample.conv.weight": torch.ones(3, 3, 4)}),
            r"downsample.conv.weight is \(3, 3, 4\)",
        ),
    ],
)
def test_weights_are_loaded_strictly(checkpoint, tmp_path, component, change, complaint):
    changed(checkpoint, tmp_path, component, change)
    with pytest.raises(CheckpointError, match=complaint):
        ReferenceEncoder(tmp_path / "changed", {})


def changed(checkpoint: Path, tmp_path: Path, component: str, change) -> None:
    shutil.copytree(checkpoint, tmp_path / "changed")
    path = tmp_path / "changed" / component / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def drop(tensors: dict[str, torch.Tensor], prefix: str) -> None:
    for name in [name for name in tensors if name.startswith(prefix)]:
        del tensors[name]


@pytest.mark.parametrize(
    ("stated", "complaint"),
    [
        ({"use_causal_conv": False}, "use_causal_conv"),
        ({"pad_mode": "reflect"}, "pad_mode"),
        ({"upsampling_ratios": [8, 6, 5]}, "240 samples|480 samples"),
        ({"num_quantizers": 8}, "16 codebooks cannot be had of 8"),
        ({"codebook_size": 1_024}, "codebook_size is 1024, and the talker has 2048"),
    ],
)
def test_another_kind_of_encoder_is_refused(stated, complaint):
    with pytest.raises(CheckpointError, match=complaint):
        SpeechEncoderConfig.read(stated, 16, 2_048)


def test_unknown_settings_are_refused(checkpoint):
    with pytest.raises(ValueError, match="dtype"):
        ReferenceEncoder(checkpoint, {"dtype": "bfloat16"})


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 24_001, 32_000, 44_100, 48_000, 96_000, 192_000])
def test_resampling_keeps_tones(rate):
    for hertz in (50, 1_000, 0.44 * min(rate, RATE)):
        sent, wanted = tone(hertz, 0.5, rate), tone(hertz, 0.5)
        made = resample(sent, rate, RATE)
        assert made.dtype == np.float32 and len(made) == -(-len(sent) * RATE // rate)
        middle = slice(2_000, -2_000)
        assert np.abs(made[middle] - wanted[: len(made)][middle]).max() < 3e-5


@pytest.mark.parametrize("hertz", [12_500, 15_000, 20_000])
def test_resampling_lets_nothing_fold_over(hertz):
    assert np.abs(resample(tone(hertz, 0.5, 44_100), 44_100, RATE)[2_000:-2_000]).max() < 3e-5


def test_the_api_can_read_the_family_without_torch():
    script = "import sys, workers.models.qwen3_tts, broker_schemas.recordings; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
