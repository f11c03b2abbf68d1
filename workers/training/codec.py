"""The codec: sound to codes and back. Its second half is Code2Wav; its first half is needed in training alone.

The encoder reads a mel spectrogram, and looks ahead by half a frame only. Could it see more, a frame's residual codes
would foretell the next one: a talker would follow them, drawn as they are by chance, and not the text.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workers.models.qwen3_tts.code2wav import Code2Wav
from workers.models.qwen3_tts.code2wav_quantizer import ResidualQuantizer
from workers.models.qwen3_tts.code2wav_sizes import Code2WavSizes
from workers.models.qwen3_tts.config import FRAME_SAMPLES
from workers.training.code2wav_forward import sound_of
from workers.training.spectra import LogMel

_MELS = 100
_HOP = 240
_STRIDES = (2, 2, 2)  # from mel frames to codes: 240 * 8 samples are a frame
_AHEAD = 3  # mel frames, and half a window of the spectrogram's: 51 ms of sound
_PAST = 3  # that a layer mixes into a position, at its own rate
_DECAY = 0.99  # of a codebook's averages
_DEAD = 0.04  # of an even share: an entry that is used less often than so begins anew
_ANEW = 0.4  # of an even share: what one that begins anew is taken to have been used


class _ConvNeXt(nn.Module):
    """Sees the past alone."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mix = nn.Conv1d(channels, channels, _PAST + 1, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.widen = nn.Linear(channels, 4 * channels)
        self.narrow = nn.Linear(4 * channels, channels)
        self.gain = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, T) -> the same shape."""
        branch = self.norm(self.mix(F.pad(x, (_PAST, 0))).transpose(1, 2))
        return x + (self.gain * self.narrow(F.gelu(self.widen(branch)))).transpose(1, 2)


class Encoder(nn.Module):
    """Sound -> a latent a frame.

    Args:
        width: of the latents.
        channels: of its layers.
        depth: blocks at each rate.
    """

    def __init__(self, width: int, channels: int = 256, depth: int = 3) -> None:
        super().__init__()
        self.spectrum = LogMel(fft=1024, hop=_HOP, mels=_MELS)
        layers: list[nn.Module] = [nn.Conv1d(_MELS, channels, 2 * _AHEAD + 1, padding=_AHEAD)]
        for stride in _STRIDES:
            layers += [_ConvNeXt(channels) for _ in range(depth)]
            layers += [nn.ConstantPad1d((1, 0), 0.0), nn.Conv1d(channels, channels, stride + 1, stride)]
        layers += [_ConvNeXt(channels) for _ in range(depth)]
        self.layers = nn.Sequential(*layers)
        self.out = nn.Conv1d(channels, width, 1)

    def forward(self, sound: Tensor) -> Tensor:
        """(B, frames * 1,920) -> (B, frames, width)."""
        frames = sound.shape[1] // FRAME_SAMPLES
        mel = self.spectrum(sound)[..., : frames * FRAME_SAMPLES // _HOP]
        return self.out(self.layers(mel)).transpose(1, 2)


class Coded(NamedTuple):
    """What a quantizer makes of latents: codes (N, codebooks), their latents (N, width), and the commitment loss."""

    codes: Tensor
    latents: Tensor
    loss: Tensor


class Heard(NamedTuple):
    """A sound that was coded and decoded again.

    sound: (B, samples). first, latents: (B, frames, width), of the first codebook and of all that were used. loss: the
    commitment loss.
    """

    sound: Tensor
    first: Tensor
    latents: Tensor
    loss: Tensor


class Books(nn.Module):
    """A residual quantizer in training: each codebook's entry is the mean of what fell to it of late.

    Args:
        published: whose codebooks and projection are trained.
        width: of the latents.
    """

    def __init__(self, published: ResidualQuantizer, width: int) -> None:
        super().__init__()
        books = [layer._codebook for layer in published.vq["layers"]]
        for book in books:
            book.requires_grad_(False)
        self.input_proj = nn.Linear(width, books[0].embedding_sum.shape[1], bias=False)
        # Whose they are is the decoder; registered here they would be saved twice.
        self._published = [published]
        self._books = books

    def forward(self, latents: Tensor, kept: Tensor | None = None) -> Coded:
        """Quantise (N, width).

        Args:
            kept: (N,) int64, of each row how many books are used; all without.
        """
        with torch.autocast(latents.device.type, enabled=False):
            return self._quantise(self.input_proj(latents.float()), kept)

    def _quantise(self, projected: Tensor, kept: Tensor | None) -> Coded:
        """Of projected latents, in float32. Gradients pass straight through, but to whom no book speaks for."""
        rest, total = projected, torch.zeros_like(projected)
        loss, codes = projected.new_zeros(()), []
        for number, book in enumerate(self._books):
            entries, vectors = book.means(), rest.detach()
            # the nearest one: the vector's own length is the same for all
            code = (entries.square().sum(1) - 2 * vectors @ entries.T).argmin(dim=1)
            if self.training:
                self._learn(book, vectors, code)
            quantised = entries[code]
            used = torch.ones_like(rest[:, :1]) if kept is None else (number < kept).to(rest)[:, None]
            loss = loss + (used * (rest - quantised).square()).mean()
            total = total + used * quantised
            rest = rest - quantised
            codes.append(code)
        spoken_for = projected if kept is None else (kept > 0)[:, None] * projected
        passed = spoken_for + (total - spoken_for).detach()
        latent = F.linear(passed, self._published[0].output_proj.weight[:, :, 0])
        return Coded(torch.stack(codes, dim=1), latent, loss)

    @torch.no_grad()
    def _learn(self, book: nn.Module, vectors: Tensor, codes: Tensor) -> None:
        usage = torch.zeros_like(book.cluster_usage).index_add_(0, codes, torch.ones_like(codes, dtype=vectors.dtype))
        sums = torch.zeros_like(book.embedding_sum).index_add_(0, codes, vectors)
        book.cluster_usage.lerp_(usage, 1 - _DECAY)
        book.embedding_sum.lerp_(sums, 1 - _DECAY)
        even = len(vectors) / len(book.cluster_usage)
        dead = book.cluster_usage < _DEAD * even
        anew = _ANEW * even * vectors[torch.randint(len(vectors), dead.shape, device=dead.device)]
        book.embedding_sum.copy_(torch.where(dead[:, None], anew, book.embedding_sum))
        book.cluster_usage.masked_fill_(dead, _ANEW * even)


class Codec(nn.Module):
    """Encoder, codebooks and decoder, as they are trained.

    Args:
        sizes: of Code2Wav.
    """

    def __init__(self, sizes: Code2WavSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.decoder = Code2Wav(sizes)
        width = sizes.codebook_width
        self.encoder = Encoder(width)
        self.first = Books(self.decoder.quantizer.rvq_first, width)
        self.rest = Books(self.decoder.quantizer.rvq_rest, width)
        for books in (self.first, self.rest):
            for book in books._books:
                nn.init.normal_(book.embedding_sum, std=1e-4)
                nn.init.constant_(book.cluster_usage, 1e-2)  # as good as dead: most begin anew in the first step

    def quantise(self, latents: Tensor, kept: Tensor | None = None) -> tuple[Coded, Tensor]:
        """(B, frames, width) -> codes (B, frames, codebooks), latents (B, frames, width); and the first book's latents.

        The first book says what it can; the rest, what it left.

        Args:
            kept: (B,) int64, of each utterance how many codebooks are used, from 1; all without.
        """
        flat = latents.flatten(0, 1)
        first = self.first(flat)
        of_rest = None if kept is None else (kept - 1).repeat_interleave(latents.shape[1])
        rest = self.rest(flat - first.latents, of_rest)
        codes = torch.cat((first.codes, rest.codes), dim=1)
        shape = latents.shape[:2]
        total = (first.latents + rest.latents).unflatten(0, shape)
        coded = Coded(codes.unflatten(0, shape), total, first.loss + rest.loss)
        return coded, first.latents.unflatten(0, shape)

    def forward(self, sound: Tensor, kept: Tensor | None = None) -> Heard:
        """Of (B, samples), a whole number of frames; `kept` as for `quantise`."""
        coded, first = self.quantise(self.encoder(sound), kept)
        return Heard(sound_of(self.decoder, coded.latents), first, coded.latents, coded.loss)

    def keep_codes(self) -> None:
        """Train no more what codes and their latents depend on: whoever has learned the codes stays understood."""
        for part in (self.encoder, self.first, self.rest, self.decoder.quantizer):
            part.requires_grad_(False).eval()

    @torch.no_grad()
    def encode(self, sound: Tensor) -> Tensor:
        """(B, samples) -> (B, frames, codebooks) int64."""
        return self.quantise(self.encoder(sound))[0].codes
