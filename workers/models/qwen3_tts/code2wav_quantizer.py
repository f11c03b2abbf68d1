"""From a frame's codes to its latent: the first codebook, and the sum of the others, each through a projection."""

from __future__ import annotations

from torch import Tensor, nn

from workers.models.qwen3_tts.code2wav_layers import Codebook


class VectorQuantizer(nn.Module):
    def __init__(self, codes: int, width: int) -> None:
        super().__init__()
        self._codebook = Codebook(codes, width)

    def forward(self, codes: Tensor) -> Tensor:
        """(B, T) int64 -> (B, T, width)."""
        return self._codebook(codes)


class ResidualQuantizer(nn.Module):
    """`books` codebooks of width / 2, summed and projected to `width`."""

    def __init__(self, books: int, codes: int, width: int) -> None:
        super().__init__()
        layers = nn.ModuleList(VectorQuantizer(codes, width // 2) for _ in range(books))
        self.vq = nn.ModuleDict({"layers": layers})
        self.output_proj = nn.Conv1d(width // 2, width, 1, bias=False)

    def forward(self, codes: Tensor) -> Tensor:
        """(B, T, books) int64 -> (B, width, T)."""
        first, *others = self.vq["layers"]
        total = first(codes[..., 0])
        for book, layer in enumerate(others, start=1):
            total = total + layer(codes[..., book])
        return self.output_proj(total.transpose(1, 2))


class SplitQuantizer(nn.Module):
    def __init__(self, books: int, codes: int, width: int) -> None:
        super().__init__()
        self.rvq_first = ResidualQuantizer(1, codes, width)
        self.rvq_rest = ResidualQuantizer(books - 1, codes, width)

    def forward(self, codes: Tensor) -> Tensor:
        """(B, T, books) int64 -> (B, width, T)."""
        return self.rvq_first(codes[..., :1]) + self.rvq_rest(codes[..., 1:])
