"""The depth decoder: draws codes c1..c7 of a frame, one after the other, and gives a hidden state with each.

The module has the published parameter names (diffusers' MiniMaxMusic3RVQDepthDecoder). It computes each of a frame's
positions once, where the authors compute all of them again for every code.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_EPS = 1e-6

# A layer's keys and values of the frame so far: (rows, heads, positions, head_dim) each.
Cache = list[tuple[Tensor, Tensor]]


class _Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, _EPS)


class _Attention(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(size, size, bias=False)
        self.to_k = nn.Linear(size, size, bias=False)
        self.to_v = nn.Linear(size, size, bias=False)
        self.to_out = nn.Linear(size, size, bias=False)

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor], start: int) -> Tensor:
        end = start + x.shape[1]
        queries, keys, values = (
            project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for project in (self.to_q, self.to_k, self.to_v)
        )
        for cached, new in zip(cache, (keys, values), strict=True):
            cached[:, :, start:end] = new
        # Either the frame's first positions, or a single one that sees all before it.
        attended = F.scaled_dot_product_attention(
            queries, cache[0][:, :, :end], cache[1][:, :, :end], is_causal=start == 0
        )
        return self.to_out(attended.transpose(1, 2).flatten(2))


class _Block(nn.Module):
    def __init__(self, size: int, heads: int, inner: int) -> None:
        super().__init__()
        self.input_layernorm = _Norm(size)
        self.attn = _Attention(size, heads)
        self.post_attention_layernorm = _Norm(size)
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor], start: int) -> Tensor:
        x = x + self.attn(self.input_layernorm(x), cache, start)
        normed = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(normed)).mul_(self.up_proj(normed)))


class DepthDecoder(nn.Module):
    """The residual codes' embeddings, decoder and heads. Arguments are the fields of the published config.json."""

    def __init__(
        self,
        hidden_size: int,
        num_layers: int,
        num_attention_heads: int,
        intermediate_size: int,
        audio_vocab_size: int,
        num_codebooks: int,
        max_position_embeddings: int,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.heads = num_attention_heads
        self.codes = audio_vocab_size
        self.codebooks = num_codebooks
        self.audio_embeddings = nn.Embedding(audio_vocab_size * (num_codebooks - 1), hidden_size)
        self.projection = nn.Linear(hidden_size, hidden_size, bias=False)
        self.pos_embedding = nn.Embedding(max_position_embeddings, hidden_size)
        self.layers = nn.ModuleList(
            _Block(hidden_size, num_attention_heads, intermediate_size) for _ in range(num_layers)
        )
        self.norm = _Norm(hidden_size)
        self.audio_heads = nn.ModuleList(
            nn.Linear(hidden_size, audio_vocab_size, bias=False) for _ in range(num_codebooks - 1)
        )

    def new_cache(self, rows: int) -> Cache:
        """For one frame of `rows` rows."""
        shape = (rows, self.heads, self.codebooks, self.hidden_size // self.heads)
        weight = self.norm.weight
        return [
            (weight.new_empty(shape), weight.new_empty(shape))
            for _ in self.layers
        ]

    def embed(self, codes: Tensor, codebook: int) -> Tensor:
        """(...,) int64 codes of `codebook` (1..7) -> (..., hidden)."""
        return self.audio_embeddings(codes + (codebook - 1) * self.codes)

    def forward(self, projected: Tensor, cache: Cache, start: int) -> Tensor:
        """The hidden state after the newest position.

        Args:
            projected: (rows, positions, hidden), what `projection` made of the positions from `start` on: two at the
                frame's start (the backbone's hidden state, c0), then one at a time.
            cache: what `new_cache` gave, filled up to `start`.

        Returns:
            (rows, hidden); codebook `start + positions - 1`'s head turns it into logits.
        """
        positions = torch.arange(start, start + projected.shape[1], device=projected.device)
        x = projected + self.pos_embedding(positions)
        for layer, cached in zip(self.layers, cache, strict=True):
            x = layer(x, cached, start)
        return self.norm(x[:, -1])
