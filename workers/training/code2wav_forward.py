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


def sound_of(decoder: Code2Wav, latents: Tensor) -> Tensor:
    """What the decoder makes of quantised latents, differentiable.

    Args:
        decoder: not folded.
        latents: (B, frames, codebook width).

    Returns:
        (B, frames * samples_per_frame), not clamped.
    """
    x = _causal(decoder.pre_conv, latents.transpose(1, 2))
    x = decoder.pre_transformer(x.transpose(1, 2), decoder.init_state(len(x))).transpose(1, 2)
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
    frequency, gain = layer.factors()
    return layer.formula(x, frequency[:, None], gain[:, None])


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
