"""The draw: a pure function of (seed, position, candidate), the same on every runner and in every batch.

No generator and no counter lives anywhere. Each candidate's hash becomes Gumbel noise, and the draw is the argmax of
logits + noise, which is a sample from softmax(logits). All of it works candidate by candidate and row by row, so that a
job's draws do not depend on who else draws, and no padding is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
# A candidate whose hash is the largest would have infinite noise and always win; it ties with its neighbour instead.
_LOG_CEILING = -(2.0**-32)
_LOG_FLOOR = torch.finfo(torch.float64).min


def murmur3(*blocks: Tensor | int) -> Tensor:
    """MurmurHash3 x86-32 with hash seed 0 over 32-bit blocks, elementwise.

    Args:
        blocks: int64 tensors (or ints) that broadcast against each other; the low 32 bits of each are hashed. At least
            one is a tensor.

    Returns:
        int64 in [0, 2**32), of the broadcast shape.
    """
    state: Tensor | int = 0
    for block in blocks:
        mixed = ((block & _MASK) * 0xCC9E2D51) & _MASK
        mixed = (_rotate(mixed, 15) * 0x1B873593) & _MASK
        state = (_rotate(state ^ mixed, 13) * 5 + 0xE6546B64) & _MASK
    state = state ^ (4 * len(blocks))
    state = ((state ^ (state >> 16)) * 0x85EBCA6B) & _MASK
    state = ((state ^ (state >> 13)) * 0xC2B2AE35) & _MASK
    return state ^ (state >> 16)


def _rotate(value: Tensor | int, by: int) -> Tensor | int:
    return ((value << by) | (value >> (32 - by))) & _MASK


def uniform(seeds: Tensor, positions: Tensor, candidates: Tensor) -> Tensor:
    """float64 in [0, 1], one for each (seed, position, candidate); int64 tensors that broadcast. 0 <= seed < 2**63."""
    return murmur3(seeds, seeds >> 32, positions, candidates).to(torch.float64) / _MASK


def gumbel(seeds: Tensor, positions: Tensor, candidates: Tensor) -> Tensor:
    """float64 Gumbel noise, one for each (seed, position, candidate); int64 tensors that broadcast."""
    log = uniform(seeds, positions, candidates).log_().clamp_(_LOG_FLOOR, _LOG_CEILING)
    return log.neg_().log_().neg_()


def guide(conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance."""
    return unconditional + (conditional - unconditional) * scale


def below_top(logits: Tensor, k: int) -> Tensor:
    """(rows, candidates) bool: which candidates lie below their row's k-th highest; ties with it do not."""
    threshold = torch.topk(logits, min(k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits < threshold


def draw_top_k(logits: Tensor, seeds: Tensor, positions: Tensor, k: int) -> Tensor:
    """Draw one candidate a row from its k most likely.

    Args:
        logits: (rows, candidates); -inf is never drawn while a row has k others.
        seeds, positions: (rows,) int64. A position is unique within a job.
        k: ties with the k-th stay in.

    Returns:
        (rows,) int64, the candidates drawn.
    """
    values = torch.nan_to_num(logits.float(), nan=-1e9, posinf=1e9, neginf=-1e9)
    out = below_top(values, k)
    if logits.device.type == "cpu":
        return _draw_kept(values, ~out, seeds, positions)
    candidates = torch.arange(values.shape[-1], device=values.device)
    scores = values.masked_fill(out, -torch.inf) + gumbel(seeds[:, None], positions[:, None], candidates)
    return scores.argmax(dim=-1)


def _draw_kept(values: Tensor, kept: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """The same draw with noise for the kept candidates only; needs their number, which on a GPU would stall the step."""
    rows, candidates = kept.nonzero(as_tuple=True)
    scores = torch.full(values.shape, -torch.inf, dtype=torch.float64)
    noise = gumbel(seeds[rows], positions[rows], candidates)
    scores[rows, candidates] = values[rows, candidates] + noise
    return scores.argmax(dim=-1)
