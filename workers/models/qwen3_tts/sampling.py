"""Sampling with parameters of each request's own: which codes may be drawn, and the draw.

Parameters lie in tensors by job slot, so that a draw of many jobs has one static shape and never waits for the device.
The order is that of transformers' logits processors: repetition penalty, what may not be drawn, temperature, top-k,
top-p; then Gumbel noise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workers.talker.sampling import gumbel

# Probabilities are added up as integers: then no order of the additions, and so no kernel, can change the sum.
_ONE = 2**40
_EVERYTHING = 2**62


class Sampling:
    """How each job slot draws one kind of code.

    Args:
        jobs: job slots.
    """

    def __init__(self, jobs: int, device: torch.device) -> None:
        self._temperature = torch.ones(jobs, dtype=torch.float32, device=device)
        self._top_k = torch.ones(jobs, dtype=torch.int64, device=device)
        self._top_mass = torch.full((jobs,), _EVERYTHING, dtype=torch.int64, device=device)
        self._noise = torch.zeros(jobs, dtype=torch.float64, device=device)  # 1, or 0 for greedy slots

    def bind(self, slot: int, *, do_sample: bool, temperature: float, top_k: int, top_p: float) -> None:
        """Set a slot's parameters, all of them.

        Args:
            do_sample: False takes the likeliest code; the others are then not read.
            temperature: above 0.
            top_k: 0 keeps all; ties with the k-th stay in.
            top_p: in (0, 1]; the fewest of the likeliest codes that together have this probability.

        Raises:
            ValueError: a parameter is out of its range.
        """
        if do_sample and not temperature > 0:
            raise ValueError(f"temperature {temperature}: must be above 0; do_sample=False draws the likeliest")
        if do_sample and (top_k < 0 or not 0 < top_p <= 1):
            raise ValueError(f"top_k {top_k}, top_p {top_p}: top_k must be 0 or more, top_p above 0 and at most 1")
        self._temperature[slot].fill_(temperature if do_sample else 1.0)
        self._top_k[slot].fill_(top_k if do_sample else 1)
        self._top_mass[slot].fill_(max(1, round(top_p * _ONE)) if do_sample and top_p < 1 else _EVERYTHING)
        self._noise[slot].fill_(float(do_sample))

    def draw(self, logits: Tensor, slots: Tensor, keys: Tensor, noise: Tensor | None = None) -> Tensor:
        """Draw one code for each of n slots.

        Args:
            logits: (n, codes) float32; -inf is never drawn where a row has anything else.
            slots: (n,) int64.
            keys: (n,) int64, of `draw_keys`.
            noise: (n, codes) float64, of `noise_of_all` for these keys, where the device keeps them all.

        Returns:
            (n,) int64.
        """
        values, codes = self.kept(logits, slots)
        drawn_noise = gumbel(keys[:, None], codes) if noise is None else noise.gather(-1, codes)
        scores = values + drawn_noise * self._noise[slots, None]
        return codes.gather(-1, scores.argmax(dim=-1, keepdim=True))[:, 0]

    def kept(self, logits: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """The codes that may be drawn, likeliest first: (values, codes), of one shape (n, at most all codes).

        Values are over the temperature; those of codes that may not be drawn are -inf. Of equals, the lower code comes
        first.
        """
        scaled = logits / self._temperature[slots, None]
        values, codes = torch.sort(scaled, dim=-1, descending=True, stable=True)
        top_k = self._top_k[slots, None]
        last = torch.where(top_k == 0, values.shape[-1], top_k).clamp(max=values.shape[-1]) - 1
        values = values.masked_fill(values < values.gather(-1, last), -torch.inf)
        mass = (values.softmax(dim=-1).double() * _ONE).to(torch.int64)
        likelier = mass.cumsum(dim=-1) - mass
        keep = likelier < self._top_mass[slots, None]
        values = values.masked_fill(~keep, -torch.inf)
        if values.is_cuda:  # how many are kept is not known without waiting for the device
            return values, codes
        width = int((values > -torch.inf).sum(dim=-1).amax())
        return values[:, : max(1, width)], codes[:, : max(1, width)]


def seen_codes(history: Tensor, draws: Tensor, codes: int) -> Tensor:
    """Which codes a job has drawn so far.

    Args:
        history: (n, max_draws) int64; entries from a job's draw index on are rubbish.
        draws: (n,) int64, each job's draw index.
        codes: how many there are.

    Returns:
        (n, codes) bool.
    """
    so_far = torch.arange(history.shape[1], device=history.device) < draws[:, None]
    seen = torch.zeros(len(history), codes + 1, dtype=torch.bool, device=history.device)
    return seen.scatter_(1, torch.where(so_far, history, codes), True)[:, :codes]


def penalise(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Make codes that were drawn less likely: (n, codes), (n, codes) bool, (n,) -> (n, codes)."""
    penalty = penalty[:, None]
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)
