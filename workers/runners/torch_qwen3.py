"""The Qwen3 decoder in plain torch, under Hugging Face's parameter names (Qwen3Model).

It keeps no keys and values: whoever runs it hands in `attend`, which owns them. Products of one input are fused once
the weights are in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workers.checkpoints import CheckpointError
from workers.models.layers import Layers

# (layer, queries (tokens, heads, d), keys (tokens, kv_heads, d), values) -> (tokens, heads * d)
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class UnsupportedConfig(CheckpointError):
    """The decoder's config asks for what is not built here. `str()` names the field."""


@dataclass(frozen=True, slots=True)
class Qwen3Config:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    attention_bias: bool
    tie_word_embeddings: bool

    @classmethod
    def from_json(cls, stated: Mapping[str, Any]) -> Qwen3Config:
        """From a config.json's content; raises UnsupportedConfig."""
        # transformers 5 writes `rope_parameters`, earlier ones `rope_theta` and `rope_scaling`.
        rope = stated.get("rope_parameters") or stated.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise UnsupportedConfig(f"rope type {kind!r}: only the default one is built here")
        if stated.get("hidden_act", "silu") != "silu":
            raise UnsupportedConfig(f"hidden_act {stated['hidden_act']!r}: only silu is built here")
        if stated.get("use_sliding_window"):
            raise UnsupportedConfig("use_sliding_window: only full attention is built here")
        try:
            sizes = {name: stated[name] for name in cls.__slots__ if name in _STATED}
            theta = rope.get("rope_theta") or stated["rope_theta"]
        except KeyError as missing:
            raise UnsupportedConfig(f"the config lacks {missing}") from None
        if sizes["num_attention_heads"] % sizes["num_key_value_heads"]:
            raise UnsupportedConfig("num_attention_heads must be a multiple of num_key_value_heads")
        return cls(
            **sizes,
            rope_theta=float(theta),
            attention_bias=stated.get("attention_bias", False),
            tie_word_embeddings=stated.get("tie_word_embeddings", False),
        )


_STATED = frozenset(Qwen3Config.__slots__) - {"rope_theta", "attention_bias", "tie_word_embeddings"}


def fused(*linears: nn.Linear) -> nn.Linear:
    """One product for several of the same input: their outputs side by side."""
    first = linears[0]
    outputs = sum(linear.out_features for linear in linears)
    with torch.device("meta"):
        joint = nn.Linear(first.in_features, outputs, bias=first.bias is not None)
    weights = {name: torch.cat([linear.get_parameter(name) for linear in linears]) for name in first.state_dict()}
    joint.load_state_dict(weights, assign=True)
    return joint.requires_grad_(False)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Qwen3Attention(nn.Module):
    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=config.attention_bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=config.attention_bias)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def fuse(self) -> None:
        self.qkv_proj = fused(self.q_proj, self.k_proj, self.v_proj)
        del self.q_proj, self.k_proj, self.v_proj

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], layer: int, attend: Attend) -> Tensor:
        heads = self.qkv_proj(x).unflatten(-1, (-1, self.head_dim))
        queries, keys, values = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        queries, keys = rotate(self.q_norm(queries), rotary), rotate(self.k_norm(keys), rotary)
        return self.o_proj(attend(layer, queries, keys, values))


class Qwen3MLP(nn.Module):
    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def fuse(self) -> None:
        self.gate_up_proj = fused(self.gate_proj, self.up_proj)
        del self.gate_proj, self.up_proj

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate).mul_(up))


class Qwen3Layer(nn.Module):
    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Qwen3Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Qwen3MLP(config)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], layer: int, attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotary, layer, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Qwen3(nn.Module):
    """Hugging Face's Qwen3Model, without its cache."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = Layers(Qwen3Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def fuse(self) -> Qwen3:
        """Fuse products of one input; the weights must be in. Parameters have other names from then on."""
        for layer in self.layers:
            layer.self_attn.fuse()
            layer.mlp.fuse()
        return self

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each position's angles: (tokens,) -> two (tokens, head_dim), of the model's dtype."""
        size = self.config.head_dim
        exponents = torch.arange(0, size, 2, dtype=torch.float32, device=positions.device) / size
        angles = positions[:, None].float() * (1.0 / self.config.rope_theta**exponents)
        angles = torch.cat((angles, angles), dim=-1)
        dtype = self.norm.weight.dtype
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def forward(self, embeds: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """Hidden states after the last norm; the module must be fused.

        Args:
            embeds: (tokens, hidden), tokens of any rows and positions.
            rotary: what `rotary` gives for the tokens' positions.
            attend: called once a layer, in order; keeps the keys and values, and attends to them.

        Returns:
            (tokens, hidden).
        """
        cosine, sine = rotary
        of_all_heads = cosine[:, None], sine[:, None]
        for index, layer in enumerate(self.layers):
            embeds = layer(embeds, of_all_heads, index, attend)
        return self.norm(embeds)


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Turn heads by what `Qwen3.rotary` gives, which broadcasts to (..., head_dim)."""
    cosine, sine = rotary
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine
