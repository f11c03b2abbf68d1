"""Code2Wav as it is trained: whole utterances at once, through the same modules and weights that decode streams.

A checkpoint's decoder keeps state from call to call and has its weights laid out for that. Here the weights are as
published, and what the streaming layers remember is the sound's own beginning: zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from workers.models.qwen3_tts.code2wav import Code2Wav
from workers.models.qwen3_tts.code2wav_layers import (
    CausalConv,
    CausalUpsampling,
    ConvNeXtBlock,
    DecoderBlock,
    DepthwiseConv,
    ResidualUnit,
    SnakeBeta,
)
from workers.models.qwen3_tts.code2wav_transformer import Attention, Transformer

_SNAKE_FLOOR = 1e-9


def sound_of(decoder: Code2Wav, latents: Tensor) -> Tensor:
    """What the decoder makes of quantised latents, differentiable.

    Args:
        decoder: not folded.
        latents: (B, frames, codebook width).

    Returns:
        (B, frames * samples_per_frame), not clamped.
    """
    x = _causal(decoder.pre_conv, latents.transpose(1, 2))
    x = _transformed(decoder.pre_transformer, x.transpose(1, 2)).transpose(1, 2)
    for upsampling, block in decoder.upsample:
        x = _convnext(block, _upsampled(upsampling, x))
    first, *blocks, last_snake, last = decoder.decoder
    with torch.autocast(x.device.type, enabled=False):  # sound needs more than bfloat16's eight bits
        x = _causal(first, x.float())
        for block in blocks:
            x = _block(block, x)
        return _causal(last, _snake(last_snake, x))[:, 0]


def _causal(layer: CausalConv | DepthwiseConv, x: Tensor) -> Tensor:
    conv = layer.conv
    before = (conv.kernel_size[0] - 1) * conv.dilation[0]
    return conv(F.pad(x, (before, 0)))


def _upsampled(layer: CausalUpsampling, x: Tensor) -> Tensor:
    return layer.conv(x)[..., : x.shape[-1] * layer.conv.stride[0]]


def _snake(layer: SnakeBeta, x: Tensor) -> Tensor:
    return _snaked(x, layer.alpha[:, None], layer.beta[:, None])


def snake_formula(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """SnakeBeta of (B, channels, T) with its logarithms as stored, (channels, 1)."""
    return x + torch.sin(x * alpha.exp()).square() / (beta.exp() + _SNAKE_FLOOR)


_snaked = snake_formula


def compile_snakes() -> None:
    """Have torch.compile make one kernel of each SnakeBeta, forward and back: they move most of the memory."""
    global _snaked
    _snaked = torch.compile(snake_formula, dynamic=True)


def _convnext(block: ConvNeXtBlock, x: Tensor) -> Tensor:
    branch = block.norm(_causal(block.dwconv, x).transpose(1, 2))
    branch = block.gamma * block.pwconv2(block.act(block.pwconv1(branch)))
    return x + branch.transpose(1, 2)


def _block(block: DecoderBlock, x: Tensor) -> Tensor:
    snake, upsampling, *units = block.block
    x = _upsampled(upsampling, _snake(snake, x))
    for unit in units:
        x = _unit(unit, x)
    return x


def _unit(unit: ResidualUnit, x: Tensor) -> Tensor:
    branch = _causal(unit.conv1, _snake(unit.act1, x))
    return x + _causal(unit.conv2, _snake(unit.act2, branch))


def _transformed(transformer: Transformer, x: Tensor) -> Tensor:
    frames = x.shape[1]
    steps = torch.arange(frames, device=x.device)
    exponents = torch.arange(0, transformer.head_dim, 2, device=x.device).float() / transformer.head_dim
    angles = steps[:, None] * transformer.rope_theta**-exponents
    angles = torch.cat((angles, angles), dim=-1)
    behind = steps[:, None] - steps
    seen = (behind >= 0) & (behind < transformer.window)
    x = transformer.input_proj(x)
    for layer in transformer.layers:
        attended = _attended(layer.self_attn, layer.input_layernorm(x), angles.cos(), angles.sin(), seen)
        x = x + layer.self_attn_layer_scale(attended)
        x = x + layer.mlp_layer_scale(layer.mlp(layer.post_attention_layernorm(x)))
    return transformer.output_proj(transformer.norm(x))


def _attended(layer: Attention, x: Tensor, cos: Tensor, sin: Tensor, seen: Tensor) -> Tensor:
    def by_head(product: Tensor, heads: int) -> Tensor:
        return product.unflatten(-1, (heads, layer.head_dim)).transpose(1, 2)

    def rotated(product: Tensor) -> Tensor:
        low, high = product.chunk(2, dim=-1)
        return (product * cos + torch.cat((-high, low), dim=-1) * sin).to(x.dtype)

    queries = rotated(by_head(layer.q_proj(x), layer.heads))
    keys = rotated(by_head(layer.k_proj(x), layer.kv_heads))
    values = by_head(layer.v_proj(x), layer.kv_heads)
    attended = F.scaled_dot_product_attention(
        queries, keys, values.to(keys.dtype), attn_mask=seen, enable_gqa=layer.heads != layer.kv_heads
    )
    return layer.o_proj(attended.transpose(1, 2).flatten(2))
