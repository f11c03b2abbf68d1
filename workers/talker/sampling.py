"""The draw: a pure function of (seed, position, candidate), the same on every runner and in every batch.

No generator and no counter lives anywhere. Each candidate's hash becomes Gumbel noise, and the draw is the argmax of
logits + noise, which is a sample from softmax(logits). All of it works candidate by candidate and row by row, so that a
job's draws do not depend on who else draws, and no padding is needed.
"""

from __future__ import annotations

from typing import overload

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
        state = _absorb(state, block)
    if isinstance(state, int):
        raise TypeError("murmur3 hashes tensors: make one of the blocks a tensor")
    return _finish(state, len(blocks))


@overload
def _absorb(state: Tensor, block: Tensor | int) -> Tensor: ...
@overload
def _absorb(state: Tensor | int, block: Tensor) -> Tensor: ...
@overload
def _absorb(state: Tensor | int, block: Tensor | int) -> Tensor | int: ...
def _absorb(state: Tensor | int, block: Tensor | int) -> Tensor | int:
    mixed = ((block & _MASK) * 0xCC9E2D51) & _MASK
    mixed = (_rotate(mixed, 15) * 0x1B873593) & _MASK
    return (_rotate(state ^ mixed, 13) * 5 + 0xE6546B64) & _MASK


def _rotate(value: Tensor | int, by: int) -> Tensor | int:
    return ((value << by) | (value >> (32 - by))) & _MASK


def _finish(state: Tensor, blocks: int) -> Tensor:
    state = state ^ (4 * blocks)
    state = ((state ^ (state >> 16)) * 0x85EBCA6B) & _MASK
    state = ((state ^ (state >> 13)) * 0xC2B2AE35) & _MASK
    return state ^ (state >> 16)


def draw_keys(seeds: Tensor, positions: Tensor) -> Tensor:
    """What a draw's candidates are hashed with: the hash's state after seed and position.

    Args:
        seeds, positions: int64, broadcast; 0 <= seed < 2**63, and a position is unique within a job.

    Returns:
        int64, of the broadcast shape.
    """
    return _absorb(_absorb(_absorb(0, seeds), seeds >> 32), positions)


def gumbel(keys: Tensor, candidates: Tensor) -> Tensor:
    """float64 Gumbel noise of each candidate of a draw; int64 tensors that broadcast."""
    hashed = _finish(_absorb(keys, candidates), 4)
    log = (hashed.to(torch.float64) / _MASK).log_().clamp_(_LOG_FLOOR, _LOG_CEILING)
    return log.neg_().log_().neg_()


def guide(conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance."""
    return unconditional + (conditional - unconditional) * scale


def most_likely(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Each row's k most likely candidates, and those that tie with the k-th.

    Args:
        logits: (rows, candidates).

    Returns:
        (values, candidates), of one shape (rows, at least k): values that are not among them are -inf.
    """
    k = min(k, logits.shape[-1])
    # How many tie is not known without waiting for the device.
    return _mask_others(logits, k) if logits.is_cuda else _pick(logits, k)


def _mask_others(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """All candidates, in their order."""
    threshold = torch.topk(logits, k, dim=-1).values[:, -1:]
    everyone = torch.arange(logits.shape[-1], device=logits.device).expand_as(logits)
    return logits.masked_fill(logits < threshold, -torch.inf), everyone


def _pick(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Only those that are kept, likeliest first: their noise costs least."""
    width = min(k + 1, logits.shape[-1])
    values, candidates = torch.topk(logits, width, dim=-1)
    threshold = values[:, k - 1 : k]
    if width > k and bool((values[:, k:] == threshold).any()):
        width = int((logits >= threshold).sum(dim=-1).max())
        values, candidates = torch.topk(logits, width, dim=-1)
        return values.masked_fill_(values < threshold, -torch.inf), candidates
    return values[:, :k], candidates[:, :k]


def noise_of_all(keys: Tensor, candidates: int) -> Tensor | None:
    """The Gumbel noise of candidates 0..n-1 of many draws at once, where the device keeps them all (see `most_likely`).

    Elsewhere None: there, a draw hashes only the candidates that it keeps.
    """
    return gumbel(keys[..., None], torch.arange(candidates, device=keys.device)) if keys.is_cuda else None


def draw_top_k(
    logits: Tensor, keys: Tensor, k: int, candidates: Tensor | None = None, noise: Tensor | None = None
) -> Tensor:
    """Draw one candidate a row from its k most likely; ties with the k-th stay in.

    Args:
        logits: (rows, n); -inf is never drawn where a row has anything else.
        keys: (rows,), of `draw_keys`.
        candidates: (rows, n) int64, which candidates the logits are of; 0..n-1 where not given.
        noise: (rows, n) float64, of `noise_of_all` for these keys.

    Returns:
        (rows,) int64, the candidates drawn.
    """
    values, kept = most_likely(logits, k)
    if candidates is not None:
        kept = candidates.gather(-1, kept)
    scores = values + (gumbel(keys[:, None], kept) if noise is None else noise)
    return kept.gather(-1, scores.argmax(dim=-1, keepdim=True))[:, 0]
