"""The acoustic stage: conditioning -> latents (30 Euler steps, guided) -> waveform -> 32 kHz samples, window by window.

A window's latents agree with its predecessor's where they overlap: the predecessor's are pinned there at every solver
step, and its condition is spliced over the same span. What a window needs of its predecessor is in its state, a plain
dict: nothing of a song is kept in the model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from workers.checkpoints import CheckpointError, fill_module, load_component
from workers.models.minimax_music3 import config
from workers.models.minimax_music3.noise import solver_noise
from workers.models.minimax_music3.resampler import resample

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_PIN_NOISE = 1.0 - 1e-6  # the noise that pinned latents have left at t = 1 is 1e-6 of what they began with


class Overlap(NamedTuple):
    """The end of a window that its successor shares, left of the last 172 latents.

    latents: (1, channels, n). condition: (1, n, width). n is 172 after a whole window.
    """

    latents: Tensor
    condition: Tensor


class MusicAcoustic:
    """MiniMax-Music3's acoustic stage; implements `workers.models.family.AcousticModel`.

    The modules are those of diffusers, on one device and in one dtype, in inference mode. `sigmas` are the solver's
    times, from 0 (noise) to 1, one more than there are steps.
    """

    sample_rate = config.SAMPLE_RATE
    channels = config.CHANNELS

    def __init__(
        self, condition_encoder: torch.nn.Module, transformer: torch.nn.Module, vocoder: torch.nn.Module, sigmas: Tensor
    ) -> None:
        self._condition_encoder = condition_encoder
        self._transformer = transformer
        self._vocoder = vocoder
        self._times = sigmas
        self.width: int = condition_encoder.config.condition_hidden_dim
        self.latent_channels: int = transformer.config.in_channels
        self._device = sigmas.device
        self._dtype = next(transformer.parameters()).dtype

    @torch.inference_mode()
    def window(
        self,
        conditioning: np.ndarray,
        *,
        index: int,
        last: bool,
        seed: int,
        state: dict[str, Any],
        check: Callable[[], None],
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Decode one window: see `AcousticModel.window`.

        The state holds `latents` (channels, n) and `condition` (n, width), the overlap as float32, and what `resample`
        says.

        Raises:
            ValueError: the conditioning or the state is not that of this window.
            Dropped: from `check`.
        """
        self._validate(conditioning, index, last, state)
        previous = self._restored(state) if index > 0 else None
        condition = self.condition(conditioning, previous)
        noise = torch.from_numpy(solver_noise(seed, index, self.latent_channels, condition.shape[1]))
        latents = self.solve(condition, noise[None].to(self._device, self._dtype), previous, check)
        waveform = self.waveform(latents, first=index == 0, last=last)
        samples, stream = resample(waveform.T, state, last=last)
        if last:
            return _pcm(samples), {}
        return _pcm(samples), self._stored(self.overlap(latents, condition)) | stream

    def _validate(self, conditioning: np.ndarray, index: int, last: bool, state: dict[str, Any]) -> None:
        frames = len(conditioning)
        if conditioning.shape != (frames, self.width) or conditioning.dtype != np.float32:
            raise ValueError(
                f"conditioning must be (frames, {self.width}) float32, got {conditioning.shape} {conditioning.dtype}"
            )
        if not 0 < frames <= config.PLAN.window or (frames < config.PLAN.window and not last):
            raise ValueError(f"window {index} (last: {last}) cannot have {frames} frames")
        if (index > 0) != bool(state):
            needed = "its predecessor's" if index > 0 else "no"
            raise ValueError(f"window {index} needs {needed} state")

    def condition(self, conditioning: np.ndarray, previous: Overlap | None) -> Tensor:
        """(frames, width) float32, slices mixed -> (1, latents, condition width), the previous window's spliced in."""
        frames = torch.from_numpy(np.array(conditioning))[None].to(self._device)
        projected = self._condition_encoder.proj(frames.transpose(1, 2).to(self._condition_encoder.dtype))
        aligned = F.interpolate(projected, size=config.latent_length(len(conditioning)), mode="nearest")
        condition = aligned.transpose(1, 2).to(self._dtype)
        if previous is not None:
            shared = min(previous.condition.shape[1], condition.shape[1])
            condition[:, :shared] = previous.condition[:, :shared]
        return condition

    def solve(self, condition: Tensor, noise: Tensor, previous: Overlap | None, check: Callable[[], None]) -> Tensor:
        """Integrate from noise to latents.

        Args:
            condition: (1, latents, condition width).
            noise: (1, channels, latents), in the model's dtype.
            previous: whose latents are pinned over the first ones.
            check: called before every step; what it raises goes through.

        Returns:
            (1, channels, latents).
        """
        both = torch.cat((condition, torch.zeros_like(condition)))
        shared = 0 if previous is None else min(previous.latents.shape[-1], noise.shape[-1])
        latents = noise.clone()
        for step in range(len(self._times) - 1):
            check()
            time = self._times[step].to(self._dtype)
            if previous is not None:
                pinned = (1.0 - _PIN_NOISE * time) * noise[..., :shared] + time * previous.latents[..., :shared]
                latents[..., :shared] = pinned
            conditional, unconditional = self._velocity(latents, time, both)
            velocity = unconditional + config.SOLVER_GUIDANCE * (conditional - unconditional)
            span = self._times[step + 1] - self._times[step]
            latents = (latents.float() + span * velocity).to(self._dtype)
        if previous is not None:
            latents[..., :shared] = previous.latents[..., :shared]
        return latents

    def _velocity(self, latents: Tensor, time: Tensor, both: Tensor) -> tuple[Tensor, Tensor]:
        """Each (1, channels, latents): with the condition, and without."""
        velocities = self._transformer(
            hidden_states=latents.expand(2, -1, -1),
            timestep=time.expand(2),
            encoder_hidden_states=both,
            return_dict=False,
        )[0]
        return velocities[:1], velocities[1:]

    def waveform(self, latents: Tensor, *, first: bool, last: bool) -> np.ndarray:
        """The window's own sound at 44.1 kHz: (2, samples) float32 in [-1, 1], its neighbours' share cropped off."""
        sound = self._vocoder(latents.to(self._vocoder.dtype))[0]
        left = 0 if first else config.CROP_LEFT_LATENTS * config.LATENT_SAMPLES
        right = 0 if last else config.CROP_RIGHT_LATENTS * config.LATENT_SAMPLES
        return sound[:, left : sound.shape[-1] - right].float().clamp(-1.0, 1.0).cpu().numpy()

    def overlap(self, latents: Tensor, condition: Tensor) -> Overlap:
        """What the next window shares with the one of these latents and this condition."""
        end = latents.shape[-1]
        start, stop = (max(0, end - length * config.OVERLAP_LATENTS) for length in (2, 1))
        return Overlap(latents[..., start:stop], condition[:, start:stop])

    def _stored(self, overlap: Overlap) -> dict[str, np.ndarray]:
        return {
            name: np.array(tensor[0].float().cpu().numpy(), order="C") for name, tensor in overlap._asdict().items()
        }

    def _restored(self, state: dict[str, Any]) -> Overlap:
        return Overlap(
            *(torch.from_numpy(np.array(state[name]))[None].to(self._device, self._dtype) for name in Overlap._fields)
        )


def _pcm(samples: np.ndarray) -> np.ndarray:
    """float64 -> int16; the resampler may overshoot full scale."""
    return np.rint(samples * 32_767.0).clip(-32_768, 32_767).astype(np.int16)


def load_acoustic(folder: Path, settings: dict[str, Any]) -> MusicAcoustic:
    """The acoustic stage of a checkpoint.

    Args:
        folder: the checkpoint.
        settings: `device` ("cpu"), `dtype` ("float32" or "bfloat16") and `solver_steps` (30); the defaults in brackets.

    Raises:
        CheckpointError, ConfigError: the checkpoint is not whole, or is not one of this family.
        ValueError: a setting is not one of these.
    """
    unknown = settings.keys() - {"device", "dtype", "solver_steps"}
    if unknown:
        raise ValueError(f"unknown acoustic settings: {', '.join(sorted(unknown))}")
    device = torch.device(settings.get("device", "cpu"))
    dtype = _DTYPES.get(settings.get("dtype", "float32"))
    if dtype is None:
        raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, got {settings['dtype']!r}")
    steps = settings.get("solver_steps", config.SOLVER_STEPS)
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"solver_steps must be a whole number from 1, got {steps!r}")

    condition_encoder, transformer, vocoder = (
        load_module(folder, component, device, dtype) for component in config.ACOUSTIC_COMPONENTS
    )
    _check_shapes(condition_encoder, transformer, vocoder)
    return MusicAcoustic(
        condition_encoder, transformer, fold_weight_norms(vocoder), solver_times(folder, steps, device)
    )


def load_module(folder: Path, component: str, device: torch.device, dtype: torch.dtype) -> torch.nn.Module:
    """A component as the diffusers module that its config names; raises CheckpointError, ConfigError."""
    stated = config.component_config(folder, component)
    kind = module_class(component)
    if stated.get("_class_name") != kind.__name__:
        raise CheckpointError(f"{component} is a {stated.get('_class_name')}, not a {kind.__name__}")
    with torch.device("meta"):
        module = kind.from_config(stated)
    stored = load_component(folder, component, device)
    fill_module(module, {name: tensor.to(dtype) for name, tensor in stored.items()}, component)
    return module


def module_class(component: str) -> type[torch.nn.Module]:
    """diffusers' class of a component."""
    import diffusers

    names = {
        config.DEPTH_DECODER: "MiniMaxMusic3RVQDepthDecoder",
        config.CONDITION_ENCODER: "MiniMaxMusic3ConditionEncoder",
        config.TRANSFORMER: "MiniMaxMusic3Transformer1DModel",
        config.VOCODER: "MiniMaxMusic3Vocoder",
    }
    return getattr(diffusers, names[component])


def _check_shapes(condition_encoder: torch.nn.Module, transformer: torch.nn.Module, vocoder: torch.nn.Module) -> None:
    if condition_encoder.config.out_dim != transformer.config.condition_dim:
        raise CheckpointError(
            f"the condition encoder puts out {condition_encoder.config.out_dim} channels, the transformer takes"
            f" {transformer.config.condition_dim}"
        )
    if transformer.config.in_channels != vocoder.config.latent_channels:
        raise CheckpointError(
            f"the transformer makes {transformer.config.in_channels} latent channels, the vocoder takes"
            f" {vocoder.config.latent_channels}"
        )
    upsampling = int(np.prod(vocoder.config.upsampling_ratios))
    if (upsampling, vocoder.config.sampling_rate) != (config.LATENT_SAMPLES, config.VOCODER_RATE):
        raise CheckpointError(f"the vocoder makes {upsampling} samples a latent at {vocoder.config.sampling_rate} Hz")


def fold_weight_norms(module: torch.nn.Module) -> torch.nn.Module:
    """Replace each weight-normed convolution's direction and length by their product, in place."""
    for child in module.modules():
        if hasattr(child, "weight_g"):
            torch.nn.utils.remove_weight_norm(child)
    return module.requires_grad_(False)


def solver_times(folder: Path, steps: int, device: torch.device) -> Tensor:
    """(steps + 1,) float32: the times of the checkpoint's schedule, from 0 to 1."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    stated = config.component_config(folder, config.SCHEDULER)
    scheduler = FlowMatchEulerDiscreteScheduler.from_config(stated)
    if not scheduler.config.invert_sigmas or scheduler.config.num_train_timesteps != 1:
        raise CheckpointError("the scheduler must have inverted sigmas and num_train_timesteps 1")
    if scheduler.config.stochastic_sampling:
        raise CheckpointError("the scheduler asks for stochastic sampling; songs would not be repeatable")
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1.0 / steps, steps))
    return scheduler.sigmas.to(device)
