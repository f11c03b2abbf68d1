"""Whether known frames may be computed again in chunks: where attention gives them the bits of one step each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Keys before the chunk: few, some across the border of a kernel's tile, many.
_SEEN = (1, 40, 125, 190, 260, 700, 1500, 4000, 8000)

# Queries, keys, values, block table, positions seen -> what is attended, in the queries' shape; see `_attend`.
Attend = Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]


def chunks_have_the_bits_of_steps(
    *, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, rows: int, chunk: int, block: int, positions: int,
    device: str = "cuda", attend: Attend | None = None,
) -> bool:  # fmt: skip
    """Try it on this device, with random numbers.

    Args:
        rows: that a job has. chunk: positions that each gets at once. block: positions by which keys are kept.
        positions: that a row may have. attend: the attention to try, where it is not the engine's own on a card.
    """
    attend = attend or _attend
    random = torch.Generator(device).manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float32, device=device).to(dtype)

    longest = min(positions, _SEEN[-1] + chunk)
    blocks = -(-longest // block)
    keys, values = (numbers(rows * blocks, block, kv_heads, head_dim) for _ in range(2))
    table = torch.arange(rows * blocks, dtype=torch.int32, device=device).view(rows, blocks)
    for seen in (seen for seen in _SEEN if seen + chunk <= longest):
        queries = numbers(rows, chunk, heads, head_dim)
        at_once = attend(queries, keys, values, table, seen + chunk)
        steps = [attend(queries[:, [i]], keys, values, table, seen + i + 1) for i in range(chunk)]
        if not torch.equal(at_once, torch.cat(steps, dim=1)):
            return False
    return True


def _attend(queries: Tensor, keys: Tensor, values: Tensor, table: Tensor, seen: int) -> Tensor:
    """(rows, n, heads, head_dim), each row's newest n of `seen` positions -> the same shape, as the engine does it."""
    from vllm.v1.attention.backends.fa_utils import get_flash_attn_version
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    version = get_flash_attn_version()
    assert version is not None  # the engine attends by it
    rows, several = queries.shape[:2]
    starts = torch.arange(rows + 1, dtype=torch.int32, device="cuda") * several
    attended = flash_attn_varlen_func(
        q=queries.flatten(0, 1),
        k=keys,
        v=values,
        cu_seqlens_q=starts,
        max_seqlen_q=several,
        seqused_k=torch.full((rows,), seen, dtype=torch.int32, device="cuda"),
        max_seqlen_k=seen,
        softmax_scale=queries.shape[-1] ** -0.5,
        causal=True,
        block_table=table,
        fa_version=version,
        num_splits=1,
    )
    return attended.view_as(queries)
