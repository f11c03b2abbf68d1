"""The Qwen3 decoder as it is trained: whole rows at once, through the modules that serve it step by step."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from workers.runners.torch_qwen3 import Qwen3, Qwen3Attention, Qwen3MLP, rotate


def hidden_states(decoder: Qwen3, embeds: Tensor, positions: Tensor, seen: Tensor | None = None) -> Tensor:
    """After the last norm, differentiable.

    Args:
        decoder: not fused.
        embeds: (B, L, hidden).
        positions: (B, L) or (L,) int64, where each stands in its sequence.
        seen: (B, L, L) bool, which ones each attends to; without it, all up to itself.

    Returns:
        (B, L, hidden).
    """
    cos, sin = decoder.rotary(positions.flatten())
    shape = (-1, positions.shape[-1], 1, cos.shape[-1])
    rotary = cos.view(shape), sin.view(shape)
    mask = None if seen is None else seen[:, None]
    for layer in decoder.layers:
        embeds = embeds + _attended(layer.self_attn, layer.input_layernorm(embeds), rotary, mask)
        embeds = embeds + _fed_forward(layer.mlp, layer.post_attention_layernorm(embeds))
    return decoder.norm(embeds)


def _attended(layer: Qwen3Attention, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
    def by_head(product: Tensor) -> Tensor:
        return product.unflatten(-1, (-1, layer.head_dim))

    queries = rotate(layer.q_norm(by_head(layer.q_proj(x))), rotary)
    keys = rotate(layer.k_norm(by_head(layer.k_proj(x))), rotary)
    values = by_head(layer.v_proj(x))
    attended = F.scaled_dot_product_attention(
        *(part.to(values.dtype).transpose(1, 2) for part in (queries, keys, values)),
        attn_mask=mask, is_causal=mask is None, enable_gqa=layer.heads != layer.kv_heads,
    )  # fmt: skip
    return layer.o_proj(attended.transpose(1, 2).flatten(2))


def _fed_forward(layer: Qwen3MLP, x: Tensor) -> Tensor:
    return layer.down_proj(F.silu(layer.gate_proj(x)) * layer.up_proj(x))


def init_decoder(decoder: nn.Module) -> None:
    """Normal weights of a small scale, the residual branches' last ones smaller with the depth; norms of one."""
    depth = sum(1 for name, _ in decoder.named_modules() if name.endswith("self_attn"))
    for name, parameter in decoder.named_parameters():
        if parameter.dim() == 1:
            nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)
        else:
            branch_end = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(parameter, std=0.02 / (2 * depth) ** 0.5 if branch_end else 0.02)
