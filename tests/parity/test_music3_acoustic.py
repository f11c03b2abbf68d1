"""Parity with diffusers' reference pipeline, in float32, from the same checkpoint, conditioning and noise.

Reached: the RMS of the difference below 1e-5 of the reference's RMS for condition, latents and waveform; the largest
single difference below 1e-5 for condition and latents, below 5e-5 among the million samples of a waveform.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from diffusers import ClassifierFreeGuidance, FlowMatchEulerDiscreteScheduler, MiniMaxMusic3Vocoder
from diffusers.modular_pipelines.minimax_music3 import denoise
from diffusers.modular_pipelines.minimax_music3.before_denoise import MiniMaxMusic3PrepareChunksStep
from diffusers.modular_pipelines.minimax_music3.decoders import MiniMaxMusic3VocoderDecodeStep
from diffusers.modular_pipelines.modular_pipeline import PipelineState

from tests.tiny_checkpoint import tiny_checkpoint
from workers.models.minimax_music3 import config
from workers.models.minimax_music3.acoustic import MusicAcoustic, load_acoustic, load_module
from workers.models.minimax_music3.noise import solver_noise

TOLERANCE = 1e-5
PEAK_TOLERANCE = 5e-5
SEED = 11
LENGTHS = (1, 57, 199, 200, 201, 250, 430)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def reference() -> SimpleNamespace:
    """What the reference's steps take as their pipeline: the components as diffusers itself loads them."""
    folder = tiny_checkpoint()
    modules = {
        component: load_reference_module(folder / component)
        for component in (config.CONDITION_ENCODER, config.TRANSFORMER, config.VOCODER)
    }
    transformer = modules[config.TRANSFORMER]
    return SimpleNamespace(
        **modules,
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder / config.SCHEDULER),
        guider=ClassifierFreeGuidance(guidance_scale=1.7),
        latent_hop_length=modules[config.CONDITION_ENCODER].config.output_hop_length,
        num_channels_latents=transformer.config.in_channels,
        _execution_device=torch.device("cpu"),
    )


def load_reference_module(folder) -> torch.nn.Module:
    import diffusers

    kind = {
        config.CONDITION_ENCODER: diffusers.MiniMaxMusic3ConditionEncoder,
        config.TRANSFORMER: diffusers.MiniMaxMusic3Transformer1DModel,
        config.VOCODER: MiniMaxMusic3Vocoder,
    }[folder.name]
    return kind.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def acoustic() -> MusicAcoustic:
    return load_acoustic(tiny_checkpoint(), {})


def slices(frames: int) -> torch.Tensor:
    """(1, frames, 8 x hidden) float32: hidden states as the language models put them out."""
    hidden = 8 * conditioning_width()
    return 0.3 * torch.randn(1, frames, hidden, generator=torch.Generator().manual_seed(frames))


def conditioning_width() -> int:
    return config.component_config(tiny_checkpoint(), config.CONDITION_ENCODER)["condition_hidden_dim"]


def mixed(encoder: torch.nn.Module, hidden: torch.Tensor) -> np.ndarray:
    """(frames, hidden) float32: the talker's half of the condition encoder."""
    by_slice = hidden[0].reshape(hidden.shape[1], 8, -1)
    weights = torch.softmax(encoder.layer_weight_logits, dim=0)
    return ((weights[:, None] * by_slice).sum(dim=1) * encoder.layer_scale).detach().numpy()


def run_reference(
    reference: SimpleNamespace, hidden: torch.Tensor, monkeypatch
) -> tuple[list[torch.Tensor], np.ndarray]:
    """Latents of each window and the waveform (2, samples), with the noise that this project draws."""
    window = iter(range(10**6))

    def noise(shape, **_):
        return torch.from_numpy(solver_noise(SEED, next(window), shape[1], shape[2]))[None]

    monkeypatch.setattr(denoise, "randn_tensor", noise)
    step = denoise.MiniMaxMusic3ChunkDenoiseStep()
    step.set_progress_bar_config(disable=True)
    state = PipelineState()
    state.set("frame_hiddens", hidden)
    state.set("num_inference_steps", config.SOLVER_STEPS)
    state.set("output_type", "np")
    for block in (MiniMaxMusic3PrepareChunksStep(), step, MiniMaxMusic3VocoderDecodeStep()):
        _, state = block(reference, state)
    return state.get("latent_chunks"), state.get("audios")[0]


def run_windows(acoustic: MusicAcoustic, conditioning: np.ndarray) -> tuple[list[torch.Tensor], np.ndarray]:
    """The same from this project's stages."""
    latents, waveforms, previous = [], [], None
    frames = len(conditioning)
    with torch.inference_mode():
        for index in range(config.PLAN.count(frames)):
            start, end = config.PLAN.bounds(index, frames)
            condition = acoustic.condition(conditioning[start:end], previous)
            noise = torch.from_numpy(solver_noise(SEED, index, acoustic.latent_channels, condition.shape[1]))[None]
            solved = acoustic.solve(condition, noise, previous, check=lambda: None)
            waveforms.append(acoustic.waveform(solved, first=index == 0, last=end == frames))
            latents.append(solved)
            previous = acoustic.overlap(solved, condition)
    return latents, torch.cat(waveforms, dim=1).numpy()


def errors(ours, theirs) -> tuple[float, float]:
    """RMS of the difference, and the largest one, both over the reference's RMS."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    assert ours.shape == theirs.shape
    rms = np.sqrt(np.mean(theirs**2))
    return float(np.sqrt(np.mean((ours - theirs) ** 2)) / rms), float(np.abs(ours - theirs).max() / rms)


@pytest.mark.parametrize("frames", LENGTHS)
def test_latents_and_waveform(frames: int, reference, acoustic, monkeypatch) -> None:
    hidden = slices(frames)
    expected_latents, expected_waveform = run_reference(reference, hidden, monkeypatch)
    latents, waveform = run_windows(acoustic, mixed(reference.condition_encoder, hidden))
    for ours, theirs in zip(latents, expected_latents, strict=True):
        _, peak = errors(ours, theirs)
        assert peak < TOLERANCE
    rms, peak = errors(waveform, expected_waveform)
    assert rms < TOLERANCE
    assert peak < PEAK_TOLERANCE


@pytest.mark.parametrize("frames", LENGTHS[:4])
def test_condition_encoder(frames: int, reference, acoustic) -> None:
    hidden = slices(frames)
    with torch.inference_mode():
        expected = reference.condition_encoder(hidden)
        ours = acoustic.condition(mixed(reference.condition_encoder, hidden), None)
    _, peak = errors(ours, expected)
    assert peak < TOLERANCE


def test_strict_loading_is_diffusers_loading(reference) -> None:
    for component in config.ACOUSTIC_COMPONENTS:
        ours = load_module(tiny_checkpoint(), component, torch.device("cpu"), torch.float32).state_dict()
        theirs = getattr(reference, component).state_dict()
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
