"""The code predictor: a small Qwen3 decoder over a frame's positions, which gives all codes but the first their logits.

Position 0 is the talker's hidden state, position c + 1 the embedding of code c. The module has the published parameter
names; fused, it holds the embeddings as one table, and beside it what the decoder's input projection makes of them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workers.models.fusing import fused
from workers.models.layers import Layers
from workers.runners.torch_qwen3 import Qwen3, Qwen3Attention, Qwen3Config, Qwen3Layer

_ROWS_AT_ONCE = 4096  # of a table that is projected when it is loaded

# Keys and values of the frame so far: (layers, 2, rows, kv_heads, positions, head_dim).
Cache = Tensor


class _Decoder(Qwen3):
    """Qwen3's layers, with a table of embeddings for each residual codebook in place of the one."""

    def __init__(self, config: Qwen3Config, codebooks: int, width: int) -> None:
        super().__init__(config)
        del self.embed_tokens
        self.codec_embedding = Layers(nn.Embedding(config.vocab_size, width) for _ in range(codebooks - 1))


class _Attention(nn.Module):
    """Qwen3's attention over a frame's few positions, in few kernels.

    The norms of queries and keys are one, and their weights lie in the rotation's tables.
    """

    def __init__(self, published: Qwen3Attention, rotary: tuple[Tensor, Tensor]) -> None:
        """Takes over the weights of the published module, which must be fused."""
        super().__init__()
        self.qkv_proj, self.o_proj = published.qkv_proj, published.o_proj
        self.kv_heads, self.head_dim, self.eps = published.kv_heads, published.head_dim, published.q_norm.eps
        weight = torch.stack((published.q_norm.weight,) * published.heads + (published.k_norm.weight,) * self.kv_heads)
        sign = torch.ones_like(weight)
        sign[:, : self.head_dim // 2] = -1
        # (positions, heads + kv_heads, head_dim): of each number itself, and of the one that it is turned with
        self.own = rotary[0][:, None] * weight
        self.other = rotary[1][:, None] * weight.roll(self.head_dim // 2, dims=-1) * sign
        # (positions, positions): which ones each may see
        self.seen = torch.ones(2 * rotary[0].shape[:1], dtype=torch.bool, device=weight.device).tril_()

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, at: Tensor) -> Tensor:
        """`at`: (positions,) int64, where they stand. A tensor, so that all steps of a frame have the same kernels.

        Keys and values are apart: of one tensor, torch.compile would write all for each position that is laid down.
        """
        heads = self.qkv_proj(x).unflatten(-1, (-1, self.head_dim))  # (rows, positions, all heads, head_dim)
        normed = F.rms_norm(heads[:, :, : -self.kv_heads], (self.head_dim,), eps=self.eps)
        turned = normed.roll(self.head_dim // 2, dims=-1)
        turned = torch.addcmul(normed * self.own[at], turned, self.other[at])
        keys.index_copy_(2, at, turned[:, :, -self.kv_heads :].transpose(1, 2))
        values.index_copy_(2, at, heads[:, :, -self.kv_heads :].transpose(1, 2))
        # Queries that share a key head are stacked, so that each key head meets its queries in one product.
        queries = turned[:, :, : -self.kv_heads].unflatten(2, (self.kv_heads, -1)).permute(0, 2, 3, 1, 4)
        group, positions = queries.shape[2:4]
        seen = self.seen[at].repeat(group, 1)
        attend = attended_in_sums if x.is_cuda else F.scaled_dot_product_attention
        attended = attend(queries.flatten(2, 3), keys, values, seen)
        return self.o_proj(attended.unflatten(2, (group, positions)).permute(0, 3, 1, 2, 4).flatten(2))


class _Layer(nn.Module):
    """Qwen3's layer with that attention."""

    def __init__(self, published: Qwen3Layer, rotary: tuple[Tensor, Tensor]) -> None:
        """Takes over the modules of the published one."""
        super().__init__()
        self.input_layernorm = published.input_layernorm
        self.self_attn = _Attention(published.self_attn, rotary)
        self.post_attention_layernorm = published.post_attention_layernorm
        self.mlp = published.mlp


def attended_in_sums(queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """F.scaled_dot_product_attention as sums, which torch.compile fuses: for 16 positions the product's own kernels
    take longer than all else in a layer.

    Args:
        queries: (rows, kv_heads, n, head_dim). keys, values: (rows, kv_heads, positions, head_dim).
        seen: (n, positions) bool.
    """
    scores = (queries.float()[..., None, :] * keys.float()[..., None, :, :]).sum(dim=-1) * queries.shape[-1] ** -0.5
    weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)
    return (weights[..., None] * values.float()[..., None, :, :]).sum(dim=-2).to(queries.dtype)


class CodePredictor(nn.Module):
    """The residual codes' embeddings, decoder and heads.

    Args:
        config: the decoder's; its vocabulary is a residual codebook.
        codebooks: of a frame, the talker's own included.
        width: of the talker's hidden states, and of the embeddings.
    """

    def __init__(self, config: Qwen3Config, codebooks: int, width: int) -> None:
        super().__init__()
        self.config = config
        self.codebooks = codebooks
        self.codes = config.vocab_size
        self.model = _Decoder(config, codebooks, width)
        self.lm_head = nn.ModuleList(
            nn.Linear(config.hidden_size, config.vocab_size, bias=False) for _ in range(codebooks - 1)
        )
        self._through = _through
        self.small_to_mtp_projection = (
            nn.Identity() if width == config.hidden_size else nn.Linear(width, config.hidden_size)
        )

    def fuse(self) -> CodePredictor:
        """Fuse products of one input, and the tables; the weights must be in. Names are others from then on."""
        self.model.fuse()
        self.embeddings = torch.cat([table.weight for table in self.model.codec_embedding])
        del self.model.codec_embedding
        self._projected = self.project_table(self.embeddings)
        device = self.embeddings.device
        self._offsets = torch.arange(self.codebooks - 1, device=device) * self.codes
        self._positions = torch.arange(self.codebooks, device=device)
        rotary = self.model.rotary(self._positions)
        self.layers = Layers(_Layer(layer, rotary) for layer in self.model.layers)
        del self.model.layers
        return self

    def compile_layers(self) -> None:
        """Have torch.compile fuse the small kernels of a layer: once for all layers and positions."""
        self._through = fused(_through)

    def project(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., hidden): the decoder's input."""
        return self.small_to_mtp_projection(x)

    def project_table(self, table: Tensor) -> Tensor:
        """(rows, width) -> (rows, hidden), in chunks."""
        return torch.cat([self.project(rows) for rows in table.split(_ROWS_AT_ONCE)])

    def embed(self, codes: Tensor) -> Tensor:
        """(n, codebooks - 1) int64, a frame's residual codes -> (n, codebooks - 1, width)."""
        return F.embedding(codes + self._offsets, self.embeddings)

    def embed_input(self, codes: Tensor, codebook: int) -> Tensor:
        """(n,) int64 codes of `codebook` (from 1) -> (n, hidden): their projected embeddings."""
        return F.embedding(codes + (codebook - 1) * self.codes, self._projected)

    def new_cache(self, rows: int) -> Cache:
        """For one frame of `rows` rows."""
        config = self.config
        shape = (len(self.layers), 2, rows, config.num_key_value_heads, self.codebooks, config.head_dim)
        return self.embeddings.new_zeros(shape)

    def forward(self, inputs: Tensor, cache: Cache, start: int) -> Tensor:
        """The hidden state after the newest position; the module must be fused.

        Args:
            inputs: (rows, positions, hidden), the positions from `start` on: two at the frame's start, then one at a
                time.
            cache: what `new_cache` gave, filled up to `start`.

        Returns:
            (rows, hidden); the head of codebook `start + positions - 1` turns it into logits.
        """
        at = self._positions[start : start + inputs.shape[1]]
        for layer, (keys, values) in zip(self.layers, cache, strict=True):
            inputs = self._through(layer, inputs, keys, values, at)
        return self.model.norm(inputs[:, -1])


def _through(layer: _Layer, x: Tensor, keys: Tensor, values: Tensor, at: Tensor) -> Tensor:
    """(rows, positions, hidden) -> the same shape."""
    x = x + layer.self_attn(layer.input_layernorm(x), keys, values, at)
    return x + layer.mlp(layer.post_attention_layernorm(x))
