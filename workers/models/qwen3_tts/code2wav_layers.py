"""Code2Wav's layers: causal convolutions that keep the end of their input, and what stands between them.

What goes from layer to layer is laid out by time: (B, T, channels). State is one dict of tensors for the whole decoder.
A layer reads the entry under its own name and puts the next one in its place; names are the layers' paths in the
decoder. An entry owns its memory and its shape never changes. What a call's rows have of its frames stands beside them,
under `FRAMES`, where they have not all.

A layer's weights have the published names and shapes until `fold`, which lays them out as they are computed with.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

State = dict[str, Tensor]

FRAMES = "frames"  # (B, n) int64: of a call's n frames, how many a row has, the same in all n places
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

    weight: Tensor  # folded
    bias: Tensor

    def __init__(self, inner: int, outer: int, kernel: int, *, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inner, outer, kernel, dilation=dilation)
        self._inner = inner
        self._kept = (kernel - 1) * dilation

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {self.name: (self._kept, self._inner)} if self._kept else {}

    def fold(self, *, as_product: bool) -> None:
        """Lay the weights out as they are multiplied: as one matrix, or with channels last for a convolution."""
        weight = self.conv.weight
        laid_out = weight[:, :, None].contiguous(memory_format=torch.channels_last)
        if as_product or weight.shape[2] == 1:
            laid_out = weight.transpose(1, 2).flatten(1).contiguous()
        self.register_buffer("weight", laid_out)
        self.register_buffer("bias", _bias(self.conv))
        self._kernel, self._dilation = weight.shape[2], self.conv.dilation[0]
        del self.conv

    def forward(self, x: Tensor, state: State) -> Tensor:
        """(B, T, inner) -> (B, T, outer)."""
        x = extended(self, x, self._kept, state)
        if self.weight.dim() == 2:
            return nn.functional.linear(self._seen(x), self.weight, self.bias)
        image = x.transpose(1, 2)[:, :, None]
        return nn.functional.conv2d(image, self.weight, self.bias, dilation=(1, self._dilation))[:, :, 0].transpose(
            1, 2
        )

    def _seen(self, x: Tensor) -> Tensor:
        """(B, kept + T, inner) -> (B, T, kernel * inner): all that each output looks at."""
        if self._kernel == 1:
            return x
        step, (batch, length, inner) = x.stride(1), x.shape
        shape = (batch, length - self._kept, self._kernel, inner)
        return x.as_strided(shape, (x.stride(0), step, self._dilation * step, x.stride(2))).flatten(2)


class DepthwiseConv(Stateful):
    """A causal convolution of each channel by itself. It keeps its last kernel - 1 inputs."""

    taps: Tensor  # folded
    bias: Tensor

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, kernel, groups=channels)
        self._channels = channels
        self._kept = kernel - 1

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {self.name: (self._kept, self._channels)}

    def fold(self) -> None:
        self.register_buffer("taps", self.conv.weight[:, 0].T.contiguous())  # (kernel, channels)
        self.register_buffer("bias", _bias(self.conv))
        del self.conv

    def forward(self, x: Tensor, state: State) -> Tensor:
        """(B, T, channels) -> the same shape."""
        frames = x.shape[1]
        x = extended(self, x, self._kept, state)
        total = self.bias.expand(len(x), frames, -1)
        for offset, tap in enumerate(self.taps):
            total = torch.addcmul(total, x[:, offset : offset + frames], tap)
        return total


class CausalUpsampling(Stateful):
    """A transposed convolution whose kernel spans `reach` strides. It keeps its last reach - 1 inputs."""

    weight: Tensor  # folded
    bias: Tensor

    def __init__(self, inner: int, outer: int, stride: int, *, reach: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inner, outer, reach * stride, stride)
        self._inner, self._outer = inner, outer
        self._stride = stride
        self._kept = reach - 1

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {self.name: (self._kept, self._inner)} if self._kept else {}

    def fold(self) -> None:
        """As one product of an output's `reach` inputs, oldest first, that gives `stride` outputs."""
        by_input = self.conv.weight.unflatten(2, (-1, self._stride)).flip(2)  # (inner, outer, reach, stride)
        self.register_buffer("weight", by_input.permute(3, 1, 2, 0).flatten(2).flatten(0, 1).contiguous())
        self.register_buffer("bias", _bias(self.conv).repeat(self._stride))
        del self.conv

    def forward(self, x: Tensor, state: State) -> Tensor:
        """(B, T, inner) -> (B, T * stride, outer)."""
        frames = x.shape[1]
        x = extended(self, x, self._kept, state)
        seen = torch.cat([x[:, offset : offset + frames] for offset in range(self._kept + 1)], dim=2)
        return nn.functional.linear(seen, self.weight, self.bias).view(len(x), -1, self._outer)


def _bias(conv: nn.Conv1d | nn.ConvTranspose1d) -> Tensor:
    assert conv.bias is not None  # as all are made here
    return conv.bias.detach()


def extended(layer: Stateful, x: Tensor, kept: int, state: State) -> Tensor:
    """(B, T, channels) -> (B, kept + T, channels): what the layer kept before it. The last `kept` are kept next."""
    if not kept:
        return x
    new = x.shape[1]
    x = torch.cat((state[layer.name], x), dim=1)
    state[layer.name] = kept_after(x, kept, new, state, dim=1)
    return x


def kept_after(joined: Tensor, kept: int, new: int, state: State, *, dim: int) -> Tensor:
    """What is kept of `kept` old and `new` new positions along `dim`: the last ones of those that a row has."""
    if (frames := state.get(FRAMES)) is None:
        return joined.narrow(dim, new, kept).clone()
    start = frames[:, :1] * (new // frames.shape[1])
    shape = [len(joined)] + [1] * (joined.dim() - 1)
    shape[dim] = kept
    places = start + torch.arange(kept, device=joined.device)
    return joined.take_along_dim(places.view(shape), dim)


class SnakeBeta(nn.Module):
    """x + sin(x e^alpha)^2 / e^beta, by channel."""

    frequency: Tensor  # folded
    gain: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))
        self.formula = snake

    def fold(self) -> None:
        """Replace the stored logarithms by what the formula needs."""
        frequency, gain = self.factors()
        self.register_buffer("frequency", frequency)
        self.register_buffer("gain", gain)
        del self.alpha, self.beta

    def factors(self) -> tuple[Tensor, Tensor]:
        """What the formula needs of the stored logarithms: (channels,) float32 twice."""
        return self.alpha.float().exp(), 1.0 / (self.beta.float().exp() + _SNAKE_FLOOR)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, channels) -> the same shape."""
        return self.formula(x, self.frequency, self.gain)


def snake(x: Tensor, frequency: Tensor, gain: Tensor) -> Tensor:
    """(B, T, channels), (channels,) twice -> (B, T, channels)."""
    return x + gain * torch.sin(x * frequency).square()


class ConvNeXtBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = DepthwiseConv(channels, 7)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.act = nn.GELU()
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor, state: State) -> Tensor:
        """(B, T, channels) -> the same shape."""
        branch = self.norm(self.dwconv(x, state))
        return x + self.gamma * self.pwconv2(self.act(self.pwconv1(branch)))


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv(channels, channels, 7, dilation=dilation)
        self.act2 = SnakeBeta(channels)
        self.conv2 = CausalConv(channels, channels, 1)

    def forward(self, x: Tensor, state: State) -> Tensor:
        """(B, T, channels) -> the same shape."""
        return self.conv2(self.act2(self.conv1(self.act1(x), state)), state) + x


class DecoderBlock(nn.Module):
    """Upsampling by `stride` to half the channels, then three residual units of growing dilation."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        outer = channels // 2
        units = [ResidualUnit(outer, dilation) for dilation in _DILATIONS]
        self.block = nn.ModuleList([SnakeBeta(channels), CausalUpsampling(channels, outer, stride, reach=2), *units])

    def forward(self, x: Tensor, state: State) -> Tensor:
        """(B, T, channels) -> (B, T * stride, channels / 2)."""
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

    def means(self) -> Tensor:
        """(codes, width) float32: the entries."""
        return self.embedding_sum.float() / self.cluster_usage.float().clamp(min=_USAGE_FLOOR)[:, None]
