"""The acoustic stage: conditioning -> latents (30 Euler steps, guided) -> waveform -> 32 kHz samples, window by window.

A window's latents agree with its predecessor's where they overlap: the predecessor's are pinned there at every solver
step, and its condition is spliced over the same span. What a window needs of its predecessor is in its state, a plain
dict: nothing of a song is kept in the model.

Nearly all windows are whole ones of one shape. On CUDA their solver step and their vocoder are each one graph, captured
at the first of them; a shorter window, a song's last, goes through the same modules call by call. Which of the two a
window takes is its length's affair alone, so its bits are too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from workers.checkpoints import CheckpointError, fill_module, load_component
from workers.models.cuda_graph import Graphed
from workers.models.family import Decoded, Dropped, Window
from workers.models.minimax_music3 import config
from workers.models.minimax_music3.noise import solver_noise
from workers.models.minimax_music3.resampler import resample
from workers.models.minimax_music3.solver import EulerStep, Solver, Step, solver_times
from workers.models.options import switch

if TYPE_CHECKING:
    from diffusers.models.autoencoders.minimax_music3_vocoder import MiniMaxMusic3Vocoder
    from diffusers.models.condition_embedders.condition_embedder_minimax_music3 import MiniMaxMusic3ConditionEncoder
    from diffusers.models.transformers.minimax_music3_rvq_depth_decoder import MiniMaxMusic3RVQDepthDecoder
    from diffusers.models.transformers.transformer_minimax_music3 import MiniMaxMusic3Transformer1DModel

    Component = (
        MiniMaxMusic3RVQDepthDecoder
        | MiniMaxMusic3ConditionEncoder
        | MiniMaxMusic3Transformer1DModel
        | MiniMaxMusic3Vocoder
    )

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_VOCODER_DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}
_OPTIONS = frozenset({"device", "dtype", "vocoder_dtype", "solver_steps", "cuda_graph", "compile"})


class Overlap(NamedTuple):
    """The end of a window that its successor shares, left of the last 172 latents.

    latents: (1, channels, n) float32. condition: (1, n, width), in the transformer's dtype. n is 172 after a whole
    window.
    """

    latents: Tensor
    condition: Tensor


class MusicAcoustic:
    """MiniMax-Music3's acoustic stage; implements `workers.models.family.AcousticModel`.

    The modules are those of diffusers, on one device, in inference mode.

    Args:
        condition_encoder: float32.
        transformer: in any dtype but for its `time_proj`, see `load_acoustic`.
        vocoder: in any dtype.
        sigmas: (steps + 1,) float32, the solver's times, from 0 (noise) to 1.
        tf32: whether the vocoder's convolutions may round their inputs to ten bits (CUDA).
        cuda_graph: whether whole windows go through CUDA graphs.
        compiled: whether whole windows go through compiled modules.
    """

    sample_rate = config.SAMPLE_RATE
    channels = config.CHANNELS
    keeps_state = True
    batch = 1  # one window fills a card

    def __init__(
        self,
        condition_encoder: MiniMaxMusic3ConditionEncoder,
        transformer: MiniMaxMusic3Transformer1DModel,
        vocoder: MiniMaxMusic3Vocoder,
        sigmas: Tensor,
        *,
        tf32: bool = False,
        cuda_graph: bool = False,
        compiled: bool = False,
    ) -> None:
        self._condition_encoder = condition_encoder
        self._vocoder = vocoder
        self.width: int = condition_encoder.config["condition_hidden_dim"]
        self.latent_channels: int = transformer.config["in_channels"]
        self._device = sigmas.device
        self._dtype = transformer.proj_in.weight.dtype
        self._vocoder_dtype = vocoder.dec_in_proj.weight.dtype
        self._tf32 = tf32
        # Its own, so that a talker's steps on the same card need not queue behind a window's.
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None

        whole = for_whole_windows(transformer, self._device)
        whole_step: Step = EulerStep(with_compiled_blocks(whole) if compiled else whole)
        whole_vocoder: Callable[[Tensor], Tensor] = _compiled(vocoder) if compiled else vocoder
        if cuda_graph:
            pool = torch.cuda.graph_pool_handle()
            whole_step, whole_vocoder = Graphed(whole_step, pool), Graphed(whole_vocoder, pool)
        self._solver = Solver(EulerStep(transformer), whole_step, sigmas)
        self._whole_vocoder = whole_vocoder

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compile and capture what whole windows go through, so that no job waits for it."""
        frames = config.PLAN.window
        conditioning = np.zeros((frames, self.width), np.float32)
        self.window(conditioning, index=0, last=False, seed=0, state={}, check=lambda: None)

    def shape(self, frames: int, *, last: bool) -> tuple[int, ...]:
        """See AcousticModel."""
        return (frames,)

    def windows(self, asked: Sequence[Window]) -> list[Decoded | None]:
        """See `AcousticModel.windows`: one after the other."""
        return [self._decoded(window) for window in asked]

    def _decoded(self, asked: Window) -> Decoded | None:
        try:
            return Decoded(
                *self.window(
                    asked.frames, index=asked.index, last=asked.last, seed=asked.seed, state=asked.state,
                    check=asked.check,
                )
            )  # fmt: skip
        except Dropped:
            return None

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
        """Decode one window: see `workers.models.family.Window`.

        The state holds `latents` (channels, n) and `condition` (n, width), the overlap as float32, and what `resample`
        says.

        Raises:
            ValueError: the conditioning or the state is not that of this window.
            Dropped: from `check`.
        """
        self._validate(conditioning, index, last, state)
        with self._on_stream():
            previous = self._restored(state) if index > 0 else None
            condition = self.condition(conditioning, previous)
            noise = torch.from_numpy(solver_noise(seed, index, self.latent_channels, condition.shape[1]))
            latents = self.solve(condition, noise[None].to(self._device), previous, check)
            waveform = self.waveform(latents, first=index == 0, last=last)
            samples, stream = resample(waveform, state, last=last)
            kept = {} if last else self._stored(self.overlap(latents, condition)) | stream
            return _pcm(samples), kept

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
        with self._convolutions(tf32=False):
            projected = self._condition_encoder.proj(frames.transpose(1, 2))
        aligned = F.interpolate(projected, size=config.latent_length(len(conditioning)), mode="nearest")
        condition = aligned.transpose(1, 2).to(self._dtype)
        if previous is not None:
            shared = min(previous.condition.shape[1], condition.shape[1])
            condition[:, :shared] = previous.condition[:, :shared]
        return condition

    def solve(self, condition: Tensor, noise: Tensor, previous: Overlap | None, check: Callable[[], None]) -> Tensor:
        """Integrate from noise to latents: see `Solver.solve`; the previous window's latents are pinned."""
        with self._convolutions(tf32=False):
            return self._solver.solve(condition, noise, None if previous is None else previous.latents, check)

    def waveform(self, latents: Tensor, *, first: bool, last: bool) -> Tensor:
        """The window's own sound at 44.1 kHz: (2, samples) float32 in [-1, 1], its neighbours' share cropped off."""
        whole = latents.shape[-1] == config.latent_length(config.PLAN.window)
        vocoder = self._whole_vocoder if whole else self._vocoder
        with self._convolutions(tf32=self._tf32):
            sound = vocoder(latents.to(self._vocoder_dtype))[0]
        left = 0 if first else config.CROP_LEFT_LATENTS * config.LATENT_SAMPLES
        right = 0 if last else config.CROP_RIGHT_LATENTS * config.LATENT_SAMPLES
        return sound[:, left : sound.shape[-1] - right].float().clamp(-1.0, 1.0)

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
        latents, condition = (torch.from_numpy(np.array(state[name]))[None] for name in Overlap._fields)
        return Overlap(latents.to(self._device), condition.to(self._device, self._dtype))

    def _on_stream(self) -> AbstractContextManager[None]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    @contextmanager
    def _convolutions(self, *, tf32: bool) -> Iterator[None]:
        """cuDNN as this stage needs it, whatever else the process does with it: never choosing kernels by timing."""
        if self._device.type != "cuda":
            yield
            return
        cudnn: Any = torch.backends.cudnn  # whose own types lack what it has
        before = cudnn.benchmark, cudnn.deterministic, cudnn.conv.fp32_precision
        cudnn.benchmark, cudnn.deterministic, cudnn.conv.fp32_precision = False, True, "tf32" if tf32 else "ieee"
        try:
            yield
        finally:
            cudnn.benchmark, cudnn.deterministic, cudnn.conv.fp32_precision = before


def _pcm(samples: Tensor) -> np.ndarray:
    """(channels, n) float64 -> (n, channels) int16; the resampler may overshoot full scale."""
    return (samples * 32_767.0).round().clamp(-32_768, 32_767).to(torch.int16).T.contiguous().cpu().numpy()


def load_acoustic(folder: Path, settings: dict[str, Any]) -> MusicAcoustic:
    """The acoustic stage of a checkpoint.

    The condition encoder is float32 always: it is one convolution. So are the latents and the solver's times, and the
    transformer's time features, whose angles bfloat16 would shift. What a song's sound passes last is the vocoder:
    bfloat16's eight bits would be heard there as noise, so it has a dtype of its own.

    Args:
        folder: the checkpoint.
        settings: the defaults in brackets: `device` ("cpu"); `dtype` of the transformer ("float32", or "bfloat16");
            `vocoder_dtype` ("float32", or "bfloat16", or on CUDA "tf32"); `solver_steps` (30); `cuda_graph` (true on
            CUDA, where alone it can be); `compile` (false), which takes a minute at the start.

    Raises:
        CheckpointError, ConfigError: the checkpoint is not whole, or is not one of this family.
        ValueError: a setting is not one of these.
    """
    unknown = settings.keys() - _OPTIONS
    if unknown:
        raise ValueError(f"unknown acoustic settings: {', '.join(sorted(unknown))}")
    device = torch.device(settings.get("device", "cpu"))
    on_cuda = device.type == "cuda"
    dtype = _chosen(settings, "dtype", _DTYPES)
    vocoder_dtype = _chosen(settings, "vocoder_dtype", _VOCODER_DTYPES)
    tf32 = settings.get("vocoder_dtype") == "tf32"
    cuda_graph, compiled = switch(settings, "cuda_graph", on_cuda), switch(settings, "compile", False)
    for name, needs_cuda in (("vocoder_dtype: tf32", tf32), ("cuda_graph: true", cuda_graph)):
        if needs_cuda and not on_cuda:
            raise ValueError(f"{name} is for CUDA, and the device is {device.type}")
    steps = settings.get("solver_steps", config.SOLVER_STEPS)
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"solver_steps must be a whole number from 1, got {steps!r}")

    condition_encoder = load_module(folder, config.CONDITION_ENCODER, device, torch.float32)
    transformer = load_module(folder, config.TRANSFORMER, device, dtype, exact="time_proj.")
    vocoder = load_module(folder, config.VOCODER, device, vocoder_dtype)
    _check_shapes(condition_encoder, transformer, vocoder)
    transformer.time_proj.register_forward_hook(lambda module, inputs, features: features.to(dtype))
    acoustic = MusicAcoustic(
        condition_encoder,
        transformer,
        fold_weight_norms(vocoder),
        solver_times(folder, steps, device),
        tf32=tf32,
        cuda_graph=cuda_graph,
        compiled=compiled,
    )
    if compiled:
        acoustic.warm_up()
    if on_cuda:
        torch.cuda.empty_cache()  # what loading took and no longer needs is free for others on the card
    return acoustic


def _chosen(settings: dict[str, Any], name: str, choices: dict[str, torch.dtype]) -> torch.dtype:
    chosen = settings.get(name, "float32")
    if chosen not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {chosen!r}")
    return choices[chosen]


class HeldRotary(torch.nn.Module):
    """One length's rotary tables, held. diffusers forgets a length once it has seen 32 others; a graph cannot."""

    def __init__(self, tables: tuple[Tensor, Tensor]) -> None:
        super().__init__()
        self._tables = tables

    def forward(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        return self._tables


def for_whole_windows(
    transformer: MiniMaxMusic3Transformer1DModel, device: torch.device
) -> MiniMaxMusic3Transformer1DModel:
    """A transformer of the same weights for whole windows only."""
    positions = config.latent_length(config.PLAN.window) + 1  # the time takes one
    whole = _with_same_weights(transformer)
    whole.register_module("rotary_emb", HeldRotary(transformer.rotary_emb(positions, device)))
    return whole


def with_compiled_blocks(transformer: MiniMaxMusic3Transformer1DModel) -> MiniMaxMusic3Transformer1DModel:
    """A transformer of the same weights with compiled blocks."""
    compiled = _with_same_weights(transformer)
    compiled.transformer_blocks = torch.nn.ModuleList(_compiled(block) for block in transformer.transformer_blocks)
    return compiled


def _compiled(module: torch.nn.Module) -> torch.nn.Module:
    """Inductor must not choose kernels by timing them: another choice rounds otherwise."""
    compiled = torch.compile(module, fullgraph=True, dynamic=False, options={"deterministic": True})
    assert isinstance(compiled, torch.nn.Module)  # of a module a module is made
    return compiled


def _with_same_weights(module: MiniMaxMusic3Transformer1DModel) -> MiniMaxMusic3Transformer1DModel:
    """A copy whose submodules can be replaced; the one given stays as it is."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin


@overload
def load_module(
    folder: Path, component: Literal["condition_encoder"], device: torch.device, dtype: torch.dtype
) -> MiniMaxMusic3ConditionEncoder: ...
@overload
def load_module(
    folder: Path, component: Literal["transformer"], device: torch.device, dtype: torch.dtype, *, exact: str
) -> MiniMaxMusic3Transformer1DModel: ...
@overload
def load_module(
    folder: Path, component: Literal["vocoder"], device: torch.device, dtype: torch.dtype
) -> MiniMaxMusic3Vocoder: ...
def load_module(
    folder: Path, component: str, device: torch.device, dtype: torch.dtype, *, exact: str | None = None
) -> Component:
    """A component as the diffusers module that its config names; raises CheckpointError, ConfigError.

    Weights whose names begin with `exact` are float32.
    """
    stated = config.component_config(folder, component)
    kind = module_class(component)
    if stated.get("_class_name") != kind.__name__:
        raise CheckpointError(f"{component} is a {stated.get('_class_name')}, not a {kind.__name__}")
    with torch.device("meta"):
        module = kind.from_config(stated)
    assert not isinstance(module, tuple)  # as where it is asked for what was left over
    stored = load_component(folder, component, device)
    weights = {}
    while stored:  # one at a time: a card that a talker shares has no room for all of them twice
        name, tensor = stored.popitem()
        weights[name] = tensor.to(torch.float32 if exact and name.startswith(exact) else dtype)
    fill_module(module, weights, component)
    return module


def module_class(component: str) -> type[Component]:
    """diffusers' class of a component."""
    import diffusers

    names = {
        config.DEPTH_DECODER: "MiniMaxMusic3RVQDepthDecoder",
        config.CONDITION_ENCODER: "MiniMaxMusic3ConditionEncoder",
        config.TRANSFORMER: "MiniMaxMusic3Transformer1DModel",
        config.VOCODER: "MiniMaxMusic3Vocoder",
    }
    return getattr(diffusers, names[component])


def _check_shapes(
    condition_encoder: MiniMaxMusic3ConditionEncoder,
    transformer: MiniMaxMusic3Transformer1DModel,
    vocoder: MiniMaxMusic3Vocoder,
) -> None:
    encoding, solving, sounding = condition_encoder.config, transformer.config, vocoder.config
    if encoding["out_dim"] != solving["condition_dim"]:
        raise CheckpointError(
            f"the condition encoder puts out {encoding['out_dim']} channels, the transformer takes"
            f" {solving['condition_dim']}"
        )
    if solving["in_channels"] != sounding["latent_channels"]:
        raise CheckpointError(
            f"the transformer makes {solving['in_channels']} latent channels, the vocoder takes"
            f" {sounding['latent_channels']}"
        )
    upsampling, rate = int(np.prod(sounding["upsampling_ratios"])), sounding["sampling_rate"]
    if (upsampling, rate) != (config.LATENT_SAMPLES, config.VOCODER_RATE):
        raise CheckpointError(f"the vocoder makes {upsampling} samples a latent at {rate} Hz")


def fold_weight_norms(vocoder: MiniMaxMusic3Vocoder) -> MiniMaxMusic3Vocoder:
    """Replace each weight-normed convolution's direction and length by their product, in place."""
    for child in vocoder.modules():
        if hasattr(child, "weight_g"):
            torch.nn.utils.remove_weight_norm(child)
    return vocoder.requires_grad_(False)
