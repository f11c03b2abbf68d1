"""Code2Wav: frames of codes in, sound out, every frame decoded once.

A streaming decoder without a stream of its own: what it must know of the frames before is a dict of tensors that the
caller holds. All layers look back only, so that sound does not depend on how frames are cut into calls, but for
rounding: bits are those of the calls' shapes.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import torch
from torch import Tensor, nn

from workers.checkpoints import CheckpointError, fill_module, load_tensors, stated_shapes
from workers.models.fusing import fused
from workers.models.layers import Layers
from workers.models.qwen3_tts import config
from workers.models.qwen3_tts.code2wav_layers import (
    FRAMES,
    CausalConv,
    CausalUpsampling,
    ConvNeXtBlock,
    DecoderBlock,
    DepthwiseConv,
    SnakeBeta,
    State,
    Stateful,
    snake,
)
from workers.models.qwen3_tts.code2wav_quantizer import SplitQuantizer
from workers.models.qwen3_tts.code2wav_sizes import Code2WavSizes, code2wav_sizes
from workers.models.qwen3_tts.code2wav_transformer import POSITION, Transformer

_PREFIXES = (config.DECODER_PREFIX, config.ENCODER_PREFIX)
# Of the way from sound to codes, which a decoder does not go.
_UNUSED = frozenset(f"{config.DECODER_PREFIX}quantizer.{part}.input_proj.weight" for part in ("rvq_first", "rvq_rest"))


class Code2Wav(nn.Module):
    """The decoder. Its weights are those of a checkpoint, folded: see `load_code2wav`."""

    def __init__(self, sizes: Code2WavSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.quantizer = SplitQuantizer(sizes.codebooks, sizes.codes, sizes.codebook_width)
        self.pre_conv = CausalConv(sizes.codebook_width, sizes.latent, 3)
        self.pre_transformer = Transformer(sizes)
        self.upsample = Layers(_upsampling(sizes.latent, stride) for stride in sizes.latent_strides)
        blocks = [DecoderBlock(sizes.channels >> depth, stride) for depth, stride in enumerate(sizes.strides)]
        outer = sizes.channels >> len(sizes.strides)
        self.decoder = nn.ModuleList(
            [CausalConv(sizes.latent, sizes.channels, 7), *blocks, SnakeBeta(outer), CausalConv(outer, 1, 7)]
        )
        for name, layer in self.named_modules():
            if isinstance(layer, Stateful):
                layer.name = name

    @property
    def samples_per_frame(self) -> int:
        return self.sizes.samples_per_frame

    @property
    def device(self) -> torch.device:
        return self.pre_conv.weight.device

    def in_dtype(self, dtype: torch.dtype) -> Code2Wav:
        """Cast in place, but for the last convolution: 16-bit sound needs more than bfloat16's eight bits."""
        self.to(dtype)
        self.decoder[-2:].float()
        return self

    def compile_kernels(self) -> None:
        """Have torch.compile make one kernel of SnakeBeta's five: half of what memory moves is theirs."""
        formula = fused(snake, dynamic=True)
        for layer in self.modules():
            if isinstance(layer, SnakeBeta):
                layer.formula = formula

    def init_state(self, batch: int) -> State:
        """The state before the first frame: entries (batch, ...) on the decoder's device. Rows are independent."""
        state = {}
        for layer in self.modules():
            if isinstance(layer, Stateful):
                weight = next(itertools.chain(layer.parameters(), layer.buffers()))
                for name, shape in layer.state_shapes().items():
                    dtype = torch.int64 if name == POSITION else weight.dtype
                    state[name] = torch.zeros(batch, *shape, dtype=dtype, device=weight.device)
        return state

    def decode(self, codes: Tensor, state: State, frames: Tensor | None = None) -> tuple[Tensor, State]:
        """Decode the next n frames of each row. Never waits for the device; `state` is left as it is.

        Args:
            codes: (B, n, codebooks) int64.
            state: of B rows, as `init_state` or the call before returned it.
            frames: (B,) int64, how many of the n a row has, where not all: the rest is sound of nothing.

        Returns:
            (B, n * samples_per_frame) float32 in [-1, 1], and the state after the frames that a row has.
        """
        state = dict(state)
        if frames is not None:
            state[FRAMES] = frames[:, None].expand(-1, codes.shape[1])
        x = self.pre_conv(self.quantizer(codes), state)
        x = self.pre_transformer(x, state)
        for upsampling, block in self.upsample:
            x = block(upsampling(x, state), state)
        first, *blocks, snake, last = self.decoder
        x = first(x, state)
        for block in blocks:
            x = block(x, state)
        sound = last(snake(x.to(last.weight.dtype)), state)
        state.pop(FRAMES, None)
        return sound[..., 0].float().clamp(-1.0, 1.0), state


def _upsampling(latent: int, stride: int) -> Layers[nn.Module]:
    return Layers([CausalUpsampling(latent, latent, stride, reach=1), ConvNeXtBlock(latent)])


def load_code2wav(folder: Path, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> Code2Wav:
    """The decoder of a checkpoint's speech tokenizer.

    Args:
        folder: the checkpoint, with `speech_tokenizer/` in it.
        dtype: float32 or bfloat16.

    Raises:
        ConfigError: the config is not of this model.
        CheckpointError: a tensor is missing, unknown or of another shape.
        PartialDownload: files are missing or cut short.
    """
    sizes = code2wav_sizes(folder)
    stored = stated_shapes(folder, config.SPEECH_TOKENIZER).keys()
    if strangers := sorted(name for name in stored if not name.startswith(_PREFIXES)):
        raise CheckpointError(
            f"{folder / config.SPEECH_TOKENIZER} has tensors of no known part, such as {strangers[0]}"
        )
    with torch.device("meta"):
        decoder = Code2Wav(sizes)
    wanted = {name for name in stored if name.startswith(config.DECODER_PREFIX)} - _UNUSED
    tensors = load_tensors(folder, config.SPEECH_TOKENIZER, wanted)
    weights = {
        name.removeprefix(config.DECODER_PREFIX): tensor.to(device, torch.float32) for name, tensor in tensors.items()
    }
    fill_module(decoder, weights, f"{config.SPEECH_TOKENIZER}'s decoder")
    return fold(decoder).in_dtype(dtype)


@torch.no_grad()
def fold(decoder: Code2Wav) -> Code2Wav:
    """Replace what training stores by what decoding computes with, in place."""
    for layer in list(decoder.modules()):
        if isinstance(layer, CausalConv):
            # cuDNN has no good kernel for so few channels and so long inputs; a CPU has.
            layer.fold(as_product=layer.conv.weight.is_cuda)
        elif isinstance(layer, SplitQuantizer | SnakeBeta | DepthwiseConv | CausalUpsampling):
            layer.fold()
    return decoder.requires_grad_(False)
