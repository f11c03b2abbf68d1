"""Code2Wav's layers: causal convolutions that keep the end of their input, and what stands between them.

State is one dict of tensors for the whole decoder. A layer reads the entry under its own name and puts the next one in
its place; names are the layers' paths in the decoder. An entry owns its memory and its shape never changes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

State = dict[str, Tensor]

_SNAKE_FLOOR = 1e-9
_USAGE_FLOOR = 1e-5
_DILATIONS = (1, 3, 9)


class Stateful(nn.Module):
    """A layer with state. `name` is its path in the decoder, given by the decoder."""

    name = ""

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """What the layer keeps of a stream: entry -> its shape without the batch."""
        raise NotImplementedError


class CausalConv(Stateful):
    """A convolution of stride 1 that looks back only. It keeps its last (kernel - 1) * dilation inputs."""

    def __init__(self, inner: int, outer: int, kernel: int, *, dilation: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inner, outer, kernel, dilation=dilation, groups=groups)
        self._inner = inner
        self._kept = (kernel - 1) * dilation

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {self.name: (self._inner, self._kept)} if self._kept else {}

    def forward(self, x: Tensor, state: State) -> Tensor:
        """(B, inner, T) -> (B, outer, T)."""
        if self._kept:
            x = torch.cat((state[self.name], x), dim=-1)
            state[self.name] = x[..., -self._kept :].clone()
        return self.conv(x)


class CausalUpsampling(Stateful):
    """A transposed convolution whose kernel spans `reach` strides. It keeps its last reach - 1 inputs."""

    def __init__(self, inner: int, outer: int, stride: int, *, reach: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inner, outer, reach * stride, stride)
        self._inner = inner
        self._stride = stride
        self._kept = reach - 1

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {self.name: (self._inner, self._kept)} if self._kept else {}

    def forward(self, x: Tensor, state: State) -> Tensor:
        """(B, inner, T) -> (B, outer, T * stride)."""
        if not self._kept:
            return self.conv(x)
        x = torch.cat((state[self.name], x), dim=-1)
        state[self.name] = x[..., -self._kept :].clone()
        cut = self._kept * self._stride  # of neighbours: what kept inputs alone reach, and what the newest reach ahead
        return self.conv(x)[..., cut:-cut]


class SnakeBeta(nn.Module):
    """x + sin(x e^alpha)^2 / e^beta, by channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def fold(self) -> None:
        """Replace the stored logarithms by what the formula needs, in float32."""
        self.register_buffer("frequency", self.alpha.float().exp()[:, None])
        self.register_buffer("gain", (1.0 / (self.beta.float().exp() + _SNAKE_FLOOR))[:, None])
        del self.alpha, self.beta

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, T) -> the same shape."""
        return x + self.gain * torch.sin(x * self.frequency).square()


class ConvNeXtBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = CausalConv(channels, channels, 7, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.act = nn.GELU()
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor, state: State) -> Tensor:
        """(B, channels, T) -> the same shape."""
        branch = self.norm(self.dwconv(x, state).transpose(1, 2))
        branch = self.gamma * self.pwconv2(self.act(self.pwconv1(branch)))
        return x + branch.transpose(1, 2)


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv(channels, channels, 7, dilation=dilation)
        self.act2 = SnakeBeta(channels)
        self.conv2 = CausalConv(channels, channels, 1)

    def forward(self, x: Tensor, state: State) -> Tensor:
        """(B, channels, T) -> the same shape."""
        return self.conv2(self.act2(self.conv1(self.act1(x), state)), state) + x


class DecoderBlock(nn.Module):
    """Upsampling by `stride` to half the channels, then three residual units of growing dilation."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        outer = channels // 2
        units = [ResidualUnit(outer, dilation) for dilation in _DILATIONS]
        self.block = nn.ModuleList([SnakeBeta(channels), CausalUpsampling(channels, outer, stride, reach=2), *units])

    def forward(self, x: Tensor, state: State) -> Tensor:
        """(B, channels, T) -> (B, channels / 2, T * stride)."""
        snake, *stateful = self.block
        x = snake(x)
        for layer in stateful:
            x = layer(x, state)
        return x


class Codebook(nn.Module):
    """A codebook as it was trained: each entry is the sum of what was assigned to it, and how much that was."""

    def __init__(self, codes: int, width: int) -> None:
        super().__init__()
        self.cluster_usage = nn.Parameter(torch.ones(codes))
        self.embedding_sum = nn.Parameter(torch.zeros(codes, width))

    def fold(self) -> None:
        """Replace sums and usage by the means, in float32."""
        usage = self.cluster_usage.float().clamp(min=_USAGE_FLOOR)
        self.register_buffer("embedding", self.embedding_sum.float() / usage[:, None])
        del self.cluster_usage, self.embedding_sum

    def forward(self, codes: Tensor) -> Tensor:
        """(B, T) int64 -> (B, T, width)."""
        return nn.functional.embedding(codes, self.embedding)
