"""Code2Wav's transformer: a sliding window of frames, rotary positions counted from the start of the utterance.

Each layer keeps the keys, already rotated, and the values of the frames that the next one may still see.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from workers.models.qwen3_tts.code2wav_layers import FRAMES, State, Stateful, kept_after
from workers.models.qwen3_tts.code2wav_sizes import Code2WavSizes

POSITION = "position"  # (B,) int64: frames decoded so far


class Sight(NamedTuple):
    """Where a call's frames stand, and what they see.

    cos, sin: (B, 1, n, head_dim) float32. visible: (B, 1, n, kept + n) bool, over the kept frames, then the call's own.
    """

    cos: Tensor
    sin: Tensor
    visible: Tensor


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, self.weight.shape, self.weight, self._eps)


class LayerScale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


class Attention(Stateful):
    def __init__(self, sizes: Code2WavSizes) -> None:
        super().__init__()
        self._heads, self._kv_heads, self._head_dim = sizes.heads, sizes.kv_heads, sizes.head_dim
        self._kept = sizes.sliding_window - 1
        queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        self.q_proj = nn.Linear(sizes.hidden, queries, bias=sizes.attention_bias)
        self.k_proj = nn.Linear(sizes.hidden, keys, bias=sizes.attention_bias)
        self.v_proj = nn.Linear(sizes.hidden, keys, bias=sizes.attention_bias)
        self.o_proj = nn.Linear(queries, sizes.hidden, bias=sizes.attention_bias)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        shape = (self._kv_heads, self._kept, self._head_dim)
        return {f"{self.name}.keys": shape, f"{self.name}.values": shape}

    def forward(self, x: Tensor, sight: Sight, state: State) -> Tensor:
        """(B, n, hidden) -> the same shape."""
        queries = _rotated(self._by_head(self.q_proj(x), self._heads), sight)
        keys = self._extended("keys", _rotated(self._by_head(self.k_proj(x), self._kv_heads), sight), state)
        values = self._extended("values", self._by_head(self.v_proj(x), self._kv_heads), state)
        seen = nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=sight.visible)
        return self.o_proj(seen.transpose(1, 2).flatten(2))

    def _by_head(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, self._head_dim)).transpose(1, 2)

    def _extended(self, entry: str, new: Tensor, state: State) -> Tensor:
        """Kept and new ones side by side, for every query head: (B, heads, kept + n, head_dim). Keeps the last ones."""
        name = f"{self.name}.{entry}"
        joined = torch.cat((state[name], new), dim=2)
        state[name] = kept_after(joined, self._kept, new.shape[2], state, dim=2)
        return joined.repeat_interleave(self._heads // self._kv_heads, dim=1)


def _rotated(x: Tensor, sight: Sight) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return (x * sight.cos + torch.cat((-high, low), dim=-1) * sight.sin).to(x.dtype)


class FeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class TransformerLayer(nn.Module):
    def __init__(self, sizes: Code2WavSizes) -> None:
        super().__init__()
        self.self_attn = Attention(sizes)
        self.mlp = FeedForward(sizes.hidden, sizes.intermediate)
        self.input_layernorm = RMSNorm(sizes.hidden, sizes.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(sizes.hidden, sizes.rms_norm_eps)
        self.self_attn_layer_scale = LayerScale(sizes.hidden)
        self.mlp_layer_scale = LayerScale(sizes.hidden)

    def forward(self, x: Tensor, sight: Sight, state: State) -> Tensor:
        """(B, n, hidden) -> the same shape."""
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), sight, state))
        return x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))


class Transformer(Stateful):
    """Keeps the position, which all its layers share."""

    def __init__(self, sizes: Code2WavSizes) -> None:
        super().__init__()
        self._window = sizes.sliding_window
        self._head_dim, self._rope_theta = sizes.head_dim, sizes.rope_theta
        self.input_proj = nn.Linear(sizes.latent, sizes.hidden)
        self.layers = nn.ModuleList(TransformerLayer(sizes) for _ in range(sizes.layers))
        self.norm = RMSNorm(sizes.hidden, sizes.rms_norm_eps)
        self.output_proj = nn.Linear(sizes.hidden, sizes.latent)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {POSITION: ()}

    def forward(self, x: Tensor, state: State) -> Tensor:
        """(B, n, latent) -> the same shape."""
        sight = self._sight(state[POSITION], x.shape[1])
        state[POSITION] = state[POSITION] + (state[FRAMES][:, 0] if FRAMES in state else x.shape[1])
        x = self.input_proj(x)
        for layer in self.layers:
            x = layer(x, sight, state)
        return self.output_proj(self.norm(x))

    def _sight(self, position: Tensor, frames: int) -> Sight:
        steps = torch.arange(frames, device=position.device)
        powers = torch.arange(0, self._head_dim, 2, device=position.device).float() / self._head_dim
        angles = (position[:, None] + steps).float()[..., None] * self._rope_theta**-powers
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        seen = torch.arange(1 - self._window, frames, device=position.device)  # from the call's first frame
        in_window = (seen <= steps[:, None]) & (seen > steps[:, None] - self._window)
        begun = seen >= -position[:, None]
        return Sight(angles.cos(), angles.sin(), (in_window & begun[:, None])[:, None])
