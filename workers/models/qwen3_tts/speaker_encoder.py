"""The speaker encoder: a log-mel spectrogram in, one vector that says who speaks out.

An ECAPA-TDNN (https://arxiv.org/abs/2005.07143). Tensors are (batch, channels, frames); names are the checkpoint's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from workers.checkpoints import CheckpointError
from workers.models.qwen3_tts.config import SAMPLE_RATE, SpeakerEncoderConfig
from workers.models.qwen3_tts.mel import BANDS

_LEAST_VARIANCE = 1e-12


class SpeakerEncoder(nn.Module):
    def __init__(self, config: SpeakerEncoderConfig) -> None:
        """Raises CheckpointError for sizes that make no encoder."""
        super().__init__()
        _check(config)
        channels, kernels, dilations = config.enc_channels, config.enc_kernel_sizes, config.enc_dilations
        self.blocks = nn.ModuleList([_TimeDelay(config.mel_dim, channels[0], kernels[0], dilations[0])])
        for index in range(1, len(channels) - 1):
            self.blocks.append(_Block(config, channels[index - 1], channels[index], kernels[index], dilations[index]))
        self.mfa = _TimeDelay(channels[-1], channels[-1], kernels[-1], dilations[-1])
        self.asp = _AttentivePooling(channels[-1], config.enc_attention_channels)
        self.fc = _convolution(2 * channels[-1], config.enc_dim)

    def forward(self, mel: Tensor) -> Tensor:
        """(batch, frames, bands) -> (batch, enc_dim)."""
        hidden = self.blocks[0](mel.transpose(1, 2))
        levels = []
        for block in self.blocks[1:]:
            hidden = block(hidden)
            levels.append(hidden)
        return self.fc(self.asp(self.mfa(torch.cat(levels, dim=1))))[..., 0]


def _check(config: SpeakerEncoderConfig) -> None:
    if not len(config.enc_channels) == len(config.enc_kernel_sizes) == len(config.enc_dilations) >= 3:
        raise CheckpointError("speaker_encoder_config: enc_channels, enc_kernel_sizes, enc_dilations differ in length")
    if (config.mel_dim, config.sample_rate) != (BANDS, SAMPLE_RATE):
        raise CheckpointError(
            f"speaker_encoder_config asks for {config.mel_dim} bands at {config.sample_rate} Hz;"
            f" the spectrogram has {BANDS} at {SAMPLE_RATE} Hz"
        )


def _convolution(inputs: int, outputs: int, kernel: int = 1, dilation: int = 1) -> nn.Conv1d:
    return nn.Conv1d(inputs, outputs, kernel, dilation=dilation, padding="same", padding_mode="reflect")


class _TimeDelay(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv = _convolution(inputs, outputs, kernel, dilation)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.conv(hidden).relu()


class _Res2Net(nn.Module):
    """Groups of channels, each of which also hears what the one before it made."""

    def __init__(self, channels: int, groups: int, kernel: int, dilation: int) -> None:
        super().__init__()
        width = channels // groups
        self.blocks = nn.ModuleList(_TimeDelay(width, width, kernel, dilation) for _ in range(groups - 1))

    def forward(self, hidden: Tensor) -> Tensor:
        first, *others = hidden.chunk(len(self.blocks) + 1, dim=1)
        made = [first]
        for block, group in zip(self.blocks, others, strict=True):
            made.append(block(group if len(made) == 1 else group + made[-1]))
        return torch.cat(made, dim=1)


class _SqueezeExcitation(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.conv1 = _convolution(channels, squeezed)
        self.conv2 = _convolution(squeezed, channels)

    def forward(self, hidden: Tensor) -> Tensor:
        gate = self.conv2(self.conv1(hidden.mean(dim=2, keepdim=True)).relu()).sigmoid()
        return hidden * gate


class _Block(nn.Module):
    def __init__(self, config: SpeakerEncoderConfig, inputs: int, outputs: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.tdnn1 = _TimeDelay(inputs, outputs)
        self.res2net_block = _Res2Net(outputs, config.enc_res2net_scale, kernel, dilation)
        self.tdnn2 = _TimeDelay(outputs, outputs)
        self.se_block = _SqueezeExcitation(outputs, config.enc_se_channels)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(hidden))))


class _AttentivePooling(nn.Module):
    """Mean and deviation over time, weighted by an attention that knows the unweighted ones."""

    def __init__(self, channels: int, attention_channels: int) -> None:
        super().__init__()
        self.tdnn = _TimeDelay(3 * channels, attention_channels)
        self.conv = _convolution(attention_channels, channels)

    def forward(self, hidden: Tensor) -> Tensor:
        """(batch, channels, frames) -> (batch, 2 * channels, 1)."""
        mean, deviation = _moments(hidden, torch.full_like(hidden[:1, :1], 1 / hidden.shape[2]))
        heard = torch.cat([hidden, mean.expand_as(hidden), deviation.expand_as(hidden)], dim=1)
        weights = self.conv(self.tdnn(heard).tanh()).softmax(dim=2)
        return torch.cat(_moments(hidden, weights), dim=1)


def _moments(hidden: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    mean = (weights * hidden).sum(dim=2, keepdim=True)
    variance = (weights * (hidden - mean).pow(2)).sum(dim=2, keepdim=True)
    return mean, variance.clamp(min=_LEAST_VARIANCE).sqrt()
