"""The Qwen3 decoder as it is trained: whole rows at once, through the modules that serve it step by step."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from workers.runners.torch_qwen3 import Qwen3, Qwen3Attention, Qwen3Layer, Qwen3MLP, rotate


def hidden_states(decoder: Qwen3, embeds: Tensor, positions: Tensor) -> Tensor:
    """After the last norm, differentiable; each position sees all up to itself.

    Args:
        decoder: not fused.
        embeds: (B, L, hidden).
        positions: (B, L) or (L,) int64, where each stands in its sequence.

    Returns:
        (B, L, hidden).
    """
    rotary = _rotary(decoder, positions)
    for layer in decoder.layers:
        embeds = _through(layer, embeds, rotary, None)[0]
    return decoder.norm(embeds)


def hidden_states_and_looks(
    decoder: Qwen3, embeds: Tensor, positions: Tensor, seen: Tensor, watched: int
) -> tuple[Tensor, Tensor]:
    """The same, and where the first head of a layer looks.

    Args:
        seen: (B, L, L) bool, which ones each attends to.
        watched: the layer.

    Returns:
        (B, L, hidden); (B, L, L), that head's scores, whose softmax is what it attends to.
    """
    rotary, looks = _rotary(decoder, positions), embeds.new_empty(0)
    for number, layer in enumerate(decoder.layers):
        embeds, (queries, keys) = _through(layer, embeds, rotary, seen[:, None])
        if number == watched:
            scores = queries[:, 0] @ keys[:, 0].transpose(1, 2) * layer.self_attn.head_dim**-0.5
            looks = scores.masked_fill(~seen, float("-inf"))
    return decoder.norm(embeds), looks


def _rotary(decoder: Qwen3, positions: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = decoder.rotary(positions.flatten())
    shape = (-1, positions.shape[-1], 1, cos.shape[-1])
    return cos.view(shape), sin.view(shape)


def _through(
    layer: Qwen3Layer, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """What leaves the layer; its queries and keys, (B, heads, L, head_dim) each."""
    attended, looking = _attended(layer.self_attn, layer.input_layernorm(x), rotary, mask)
    x = x + attended
    return x + _fed_forward(layer.mlp, layer.post_attention_layernorm(x)), looking


def _attended(
    layer: Qwen3Attention, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    def by_head(product: Tensor) -> Tensor:
        return product.unflatten(-1, (-1, layer.head_dim))

    values = by_head(layer.v_proj(x))
    queries = rotate(layer.q_norm(by_head(layer.q_proj(x))), rotary)
    keys = rotate(layer.k_norm(by_head(layer.k_proj(x))), rotary)
    queries, keys, values = (part.to(values.dtype).transpose(1, 2) for part in (queries, keys, values))
    attended = F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=layer.heads != layer.kv_heads
    )
    return layer.o_proj(attended.transpose(1, 2).flatten(2)), (queries, keys)


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
