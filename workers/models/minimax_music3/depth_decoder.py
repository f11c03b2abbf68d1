"""The depth decoder: draws codes c1..c7 of a frame, one after the other, and gives a hidden state with each.

The module has the published parameter names (diffusers' MiniMaxMusic3RVQDepthDecoder). It computes each of a frame's
positions once, where the authors compute all of them again for every code.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workers.models.layers import Layers
from workers.runners.torch_qwen3 import RMSNorm, fused

_EPS = 1e-6

# Each layer's keys and values of the frame so far: (2, rows, heads, positions, head_dim).
Cache = list[Tensor]


class _Attention(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(size, size, bias=False)
        self.to_k = nn.Linear(size, size, bias=False)
        self.to_v = nn.Linear(size, size, bias=False)
        self.to_out = nn.Linear(size, size, bias=False)

    def fuse(self) -> None:
        self.to_qkv = fused(self.to_q, self.to_k, self.to_v)
        del self.to_q, self.to_k, self.to_v

    def forward(self, x: Tensor, cache: Tensor, start: int) -> Tensor:
        end = start + x.shape[1]
        # (rows, positions, 3 * size) -> (3, rows, heads, positions, head_dim)
        heads = self.to_qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        cache[..., start:end, :] = heads[1:]
        keys, values = cache[..., :end, :]
        # Either the frame's first positions, or a single one that sees all before it.
        attended = F.scaled_dot_product_attention(heads[0], keys, values, is_causal=start == 0)
        return self.to_out(attended.transpose(1, 2).flatten(2))


class _Block(nn.Module):
    def __init__(self, size: int, heads: int, inner: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(size, _EPS)
        self.attn = _Attention(size, heads)
        self.post_attention_layernorm = RMSNorm(size, _EPS)
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)

    def fuse(self) -> None:
        self.attn.fuse()
        self.gate_up_proj = fused(self.gate_proj, self.up_proj)
        del self.gate_proj, self.up_proj

    def forward(self, x: Tensor, cache: Tensor, start: int) -> Tensor:
        x = x + self.attn(self.input_layernorm(x), cache, start)
        gate, up = self.gate_up_proj(self.post_attention_layernorm(x)).chunk(2, dim=-1)
        return x + self.down_proj(F.silu(gate).mul_(up))


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
        self.layers = Layers(_Block(hidden_size, num_attention_heads, intermediate_size) for _ in range(num_layers))
        self.norm = RMSNorm(hidden_size, _EPS)
        self.audio_heads = Layers(
            nn.Linear(hidden_size, audio_vocab_size, bias=False) for _ in range(num_codebooks - 1)
        )

    def fuse(self) -> DepthDecoder:
        """Fuse products of one input; the weights must be in. Parameters have other names from then on."""
        for layer in self.layers:
            layer.fuse()
        return self

    def new_cache(self, rows: int) -> Cache:
        """For one frame of `rows` rows."""
        shape = (2, rows, self.heads, self.codebooks, self.hidden_size // self.heads)
        return [self.norm.weight.new_empty(shape) for _ in self.layers]

    def embed(self, codes: Tensor, codebook: int) -> Tensor:
        """(...,) int64 codes of `codebook` (1..7) -> (..., hidden)."""
        return self.audio_embeddings(codes + (codebook - 1) * self.codes)

    def forward(self, projected: Tensor, cache: Cache, start: int) -> Tensor:
        """The hidden state after the newest position; the module must be fused.

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
