"""The speech tokenizer's encoder: sound in, the codes that Code2Wav would speak it from out.

A Mimi encoder (https://arxiv.org/abs/2410.00037): causal convolutions, a causal transformer, and residual vector
quantisation. A checkpoint states a sliding window for the transformer; the authors' package does not apply it, and so
neither is it here. Names are the checkpoint's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from workers.checkpoints import CheckpointError
from workers.models.qwen3_tts.config import FRAME_SAMPLES, SAMPLE_RATE

_DOWNSAMPLE = 2  # after the transformer
_LEAST_USAGE = 1e-5
# What the encoder below is; a checkpoint that asks for another one is refused.
_FIXED = {
    "sampling_rate": SAMPLE_RATE, "audio_channels": 1, "use_causal_conv": True, "pad_mode": "constant",
    "use_conv_shortcut": False, "hidden_act": "gelu", "attention_bias": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SpeechEncoderConfig:
    """How many codebooks of a frame count, and sizes as `encoder_config` states them; the defaults are Mimi's."""

    codebooks: int
    hidden_size: int = 512
    num_filters: int = 64
    num_residual_layers: int = 1
    upsampling_ratios: tuple[int, ...] = (8, 6, 5, 4)
    kernel_size: int = 7
    last_kernel_size: int = 3
    residual_kernel_size: int = 3
    dilation_growth_rate: int = 2
    compress: int = 2
    codebook_size: int = 2_048
    codebook_dim: int = 256
    num_quantizers: int = 32
    num_semantic_quantizers: int = 1
    vector_quantization_hidden_dimension: int = 256
    num_hidden_layers: int = 8
    intermediate_size: int = 2_048
    num_attention_heads: int = 8
    num_key_value_heads: int = 8
    head_dim: int | None = None
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0

    @classmethod
    def read(cls, encoder: Mapping[str, Any], codebooks: int, codes: int) -> SpeechEncoderConfig:
        """From `encoder_config`, which may leave out everything; raises CheckpointError for another kind of encoder.

        Args:
            codebooks, codes: the talker's.
        """
        for name, value in _FIXED.items():
            if encoder.get(name, value) != value:
                raise CheckpointError(f"encoder_config: {name} is {encoder[name]!r}; only {value!r} is known")
        named = {name: encoder[name] for name in cls.__dataclass_fields__ if name in encoder}
        named = {name: tuple(value) if isinstance(value, list) else value for name, value in named.items()}
        sizes = cls(**named | {"codebooks": codebooks})
        if sizes.frame_samples != FRAME_SAMPLES:
            raise CheckpointError(
                f"encoder_config: its strides make {sizes.frame_samples} samples, not {FRAME_SAMPLES}"
            )
        if not sizes.num_semantic_quantizers < codebooks <= sizes.num_quantizers:
            raise CheckpointError(f"encoder_config: {codebooks} codebooks cannot be had of {sizes.num_quantizers}")
        if sizes.codebook_size != codes:
            raise CheckpointError(f"encoder_config: codebook_size is {sizes.codebook_size}, and the talker has {codes}")
        return sizes

    @property
    def frame_samples(self) -> int:
        return math.prod(self.upsampling_ratios) * _DOWNSAMPLE

    @property
    def head(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads


class SpeechEncoder(nn.Module):
    def __init__(self, config: SpeechEncoderConfig) -> None:
        super().__init__()
        self.encoder = _Convolutions(config)
        self.encoder_transformer = _Transformer(config)
        self.downsample = _CausalConvolution(
            config.hidden_size, config.hidden_size, 2 * _DOWNSAMPLE, stride=_DOWNSAMPLE, bias=False, pad="replicate"
        )
        self.quantizer = _SplitQuantizer(config)
        self._codebooks = config.codebooks

    def forward(self, pcm: Tensor) -> Tensor:
        """(samples,) float32 -> (frames, codebooks) int64, a frame for each begun 1,920 samples."""
        hidden = self.encoder(pcm[None, None])
        hidden = self.encoder_transformer(hidden.transpose(1, 2)).transpose(1, 2)
        return self.quantizer(self.downsample(hidden), self._codebooks)


class _CausalConvolution(nn.Module):
    """Sees no later input; the end is padded so that every begun stride gives an output."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        bias: bool = True,
        pad: str = "constant",
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, stride, dilation=dilation, bias=bias)
        self._before = (kernel - 1) * dilation + 1 - stride
        self._stride = stride
        self._pad = pad

    def forward(self, hidden: Tensor) -> Tensor:
        after = -hidden.shape[-1] % self._stride
        return self.conv(functional.pad(hidden, (self._before, after), mode=self._pad))


class _Residual(nn.Module):
    def __init__(self, channels: int, hidden: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.ELU(),
            _CausalConvolution(channels, hidden, kernel, dilation=dilation),
            nn.ELU(),
            _CausalConvolution(hidden, channels, 1),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.block(hidden)


class _Convolutions(nn.Module):
    """(1, 1, samples) -> (1, hidden, samples / 960)."""

    def __init__(self, config: SpeechEncoderConfig) -> None:
        super().__init__()
        channels = config.num_filters
        layers: list[nn.Module] = [_CausalConvolution(1, channels, config.kernel_size)]
        for ratio in reversed(config.upsampling_ratios):
            for depth in range(config.num_residual_layers):
                dilation = config.dilation_growth_rate**depth
                layers.append(_Residual(channels, channels // config.compress, config.residual_kernel_size, dilation))
            layers += [nn.ELU(), _CausalConvolution(channels, 2 * channels, 2 * ratio, stride=ratio)]
            channels *= 2
        layers += [nn.ELU(), _CausalConvolution(channels, config.hidden_size, config.last_kernel_size)]
        self.layers = nn.Sequential(*layers)

    def forward(self, pcm: Tensor) -> Tensor:
        return self.layers(pcm)


class _Transformer(nn.Module):
    def __init__(self, config: SpeechEncoderConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_TransformerLayer(config) for _ in range(config.num_hidden_layers))
        self._head, self._theta = config.head, config.rope_theta

    def forward(self, hidden: Tensor) -> Tensor:
        """(1, positions, hidden) -> the same."""
        cos, sin = self._rotary(hidden.shape[1], hidden.device)
        for layer in self.layers:
            hidden = layer(hidden, cos, sin)
        return hidden

    def _rotary(self, positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosines and sines, (positions, head) each."""
        exponents = torch.arange(0, self._head, 2, device=device).float() / self._head
        angles = torch.arange(positions, device=device).float()[:, None] * (1.0 / self._theta**exponents)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()


class _LayerScale(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(channels))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.scale * hidden


class _FeedForward(nn.Module):
    def __init__(self, config: SpeechEncoderConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.fc2(functional.gelu(self.fc1(hidden)))


class _Attention(nn.Module):
    def __init__(self, config: SpeechEncoderConfig) -> None:
        super().__init__()
        queries, keys = config.num_attention_heads * config.head, config.num_key_value_heads * config.head
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        self._head = config.head
        self._grouped = config.num_key_value_heads != config.num_attention_heads

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        queries, keys, values = (
            project(hidden).unflatten(-1, (-1, self._head)).transpose(1, 2)  # (1, heads, positions, head)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        queries, keys = _rotated(queries, cos, sin), _rotated(keys, cos, sin)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=self._grouped)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin


class _TransformerLayer(nn.Module):
    def __init__(self, config: SpeechEncoderConfig) -> None:
        super().__init__()
        self.self_attn = _Attention(config)
        self.mlp = _FeedForward(config)
        self.input_layernorm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.self_attn_layer_scale = _LayerScale(config.hidden_size)
        self.mlp_layer_scale = _LayerScale(config.hidden_size)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        hidden = hidden + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(hidden), cos, sin))
        return hidden + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(hidden)))


class _Codebook(nn.Module):
    """Centroids as training left them: sums of what fell to each, and how much did."""

    cluster_usage: Tensor
    embed_sum: Tensor

    def __init__(self, config: SpeechEncoderConfig) -> None:
        super().__init__()
        self.register_buffer("initialized", torch.ones(1))
        self.register_buffer("cluster_usage", torch.ones(config.codebook_size))
        self.register_buffer("embed_sum", torch.zeros(config.codebook_size, config.codebook_dim))

    def centroids(self) -> Tensor:
        return self.embed_sum / self.cluster_usage.clamp(min=_LEAST_USAGE)[:, None]


class _Quantizer(nn.Module):
    def __init__(self, config: SpeechEncoderConfig) -> None:
        super().__init__()
        self.codebook = _Codebook(config)

    def forward(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(frames, width) -> the nearest centroids' indices, (frames,), and what they leave over."""
        centroids = self.codebook.centroids()
        indices = torch.cdist(residual[None], centroids[None])[0].argmin(dim=-1)
        return indices, residual - centroids[indices]


class _ResidualQuantizer(nn.Module):
    def __init__(self, config: SpeechEncoderConfig, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Quantizer(config) for _ in range(count))
        width = config.vector_quantization_hidden_dimension
        self.input_proj: nn.Module
        if width != config.hidden_size:
            self.input_proj = nn.Conv1d(config.hidden_size, width, 1, bias=False)
            self.output_proj = nn.Conv1d(width, config.hidden_size, 1, bias=False)  # of a decoder; only stored
        else:
            self.input_proj = nn.Identity()

    def forward(self, hidden: Tensor, count: int) -> list[Tensor]:
        """(1, hidden, frames) -> `count` times (frames,) int64."""
        residual = self.input_proj(hidden)[0].T
        codes = []
        for layer in self.layers[:count]:
            indices, residual = layer(residual)
            codes.append(indices)
        return codes


class _SplitQuantizer(nn.Module):
    """The semantic codebooks and the acoustic ones each quantise the whole signal."""

    def __init__(self, config: SpeechEncoderConfig) -> None:
        super().__init__()
        self._semantic = config.num_semantic_quantizers
        self.semantic_residual_vector_quantizer = _ResidualQuantizer(config, self._semantic)
        self.acoustic_residual_vector_quantizer = _ResidualQuantizer(config, config.num_quantizers - self._semantic)

    def forward(self, hidden: Tensor, count: int) -> Tensor:
        """(1, hidden, frames) -> (frames, count) int64."""
        codes = self.semantic_residual_vector_quantizer(hidden, self._semantic)
        codes += self.acoustic_residual_vector_quantizer(hidden, count - self._semantic)
        return torch.stack(codes, dim=1)
