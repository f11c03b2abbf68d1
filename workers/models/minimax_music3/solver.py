"""The solver: a window's latents from noise to data, by Euler steps of the guided transformer.

Latents, times and the guided velocity are float32 whatever the transformer computes in: thirty steps add up, and each
would round what the others left.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from workers.checkpoints import CheckpointError
from workers.models.cuda_graph import Pace
from workers.models.minimax_music3 import config

if TYPE_CHECKING:
    from diffusers.models.transformers.transformer_minimax_music3 import MiniMaxMusic3Transformer1DModel

_PIN_NOISE = 1.0 - 1e-6  # the noise that pinned latents have left at t = 1 is 1e-6 of what they began with

Step = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class EulerStep:
    """One step; the conditional and the unconditional row go through the transformer as one batch of two."""

    def __init__(self, transformer: MiniMaxMusic3Transformer1DModel) -> None:
        self._transformer = transformer
        self._dtype = transformer.proj_in.weight.dtype

    def __call__(self, latents: Tensor, both: Tensor, time: Tensor, span: Tensor) -> Tensor:
        """Move on by `span`.

        Args:
            latents: (1, channels, n) float32, at `time`.
            both: (2, n, condition width), the condition and zeros.
            time, span: () float32.

        Returns:
            (1, channels, n) float32.
        """
        conditional, unconditional = self._transformer(
            hidden_states=latents.to(self._dtype).expand(2, -1, -1),
            timestep=time.expand(2),
            encoder_hidden_states=both,
            return_dict=False,
        )[0].float().split(1)  # fmt: skip
        velocity = unconditional + config.SOLVER_GUIDANCE * (conditional - unconditional)
        return latents + span * velocity


class Solver:
    """Integrates windows.

    Args:
        step: for windows of any length.
        whole_step: for whole windows, which nearly all are.
        times: (steps + 1,) float32 from 0 (noise) to 1, on the device.
    """

    def __init__(self, step: Step, whole_step: Step, times: Tensor) -> None:
        self._step = step
        self._whole_step = whole_step
        self._times = times
        self._whole = config.latent_length(config.PLAN.window)

    def solve(self, condition: Tensor, noise: Tensor, pinned: Tensor | None, check: Callable[[], None]) -> Tensor:
        """Integrate from noise to latents.

        Args:
            condition: (1, latents, condition width), in the transformer's dtype.
            noise: (1, channels, latents) float32.
            pinned: (1, channels, n) float32, the previous window's latents that the first ones are held to.
            check: called before every step, no more than one step ahead of the device; what it raises goes through.

        Returns:
            (1, channels, latents) float32.
        """
        both = torch.cat((condition, torch.zeros_like(condition)))
        shared = 0 if pinned is None else min(pinned.shape[-1], noise.shape[-1])
        step = self._whole_step if noise.shape[-1] == self._whole else self._step
        pace = Pace(noise.device)
        latents = noise.clone()
        for time, span in zip(self._times[:-1], self._times.diff(), strict=True):
            check()
            if pinned is not None:
                left = (1.0 - _PIN_NOISE * time) * noise[..., :shared]
                latents[..., :shared] = left + time * pinned[..., :shared]
            latents = step(latents, both, time, span)
            pace.keep()
        if pinned is not None:
            latents[..., :shared] = pinned[..., :shared]
        return latents


def solver_times(folder: Path, steps: int, device: torch.device) -> Tensor:
    """(steps + 1,) float32: the times of the checkpoint's schedule, from 0 to 1."""
    from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler

    stated = config.component_config(folder, config.SCHEDULER)
    scheduler = FlowMatchEulerDiscreteScheduler.from_config(stated)
    if not scheduler.config["invert_sigmas"] or scheduler.config["num_train_timesteps"] != 1:
        raise CheckpointError("the scheduler must have inverted sigmas and num_train_timesteps 1")
    if scheduler.config["stochastic_sampling"]:
        raise CheckpointError("the scheduler asks for stochastic sampling; songs would not be repeatable")
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1.0 / steps, steps))
    return scheduler.sigmas.to(device)
