"""From a frame's codes to its latent: the first codebook, and the sum of the others, each through a projection."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from workers.models.qwen3_tts.code2wav_layers import Codebook


class VectorQuantizer(nn.Module):
    def __init__(self, codes: int, width: int) -> None:
        super().__init__()
        self._codebook = Codebook(codes, width)


class ResidualQuantizer(nn.Module):
    """`books` codebooks of width / 2, summed and projected to `width`."""

    def __init__(self, books: int, codes: int, width: int) -> None:
        super().__init__()
        layers = nn.ModuleList(VectorQuantizer(codes, width // 2) for _ in range(books))
        self.vq = nn.ModuleDict({"layers": layers})
        self.output_proj = nn.Conv1d(width // 2, width, 1, bias=False)

    def projected(self) -> Tensor:
        """(books * codes, width) float32: all entries, projected."""
        entries = torch.cat([book.means() for book in self.vq.modules() if isinstance(book, Codebook)])
        return entries @ self.output_proj.weight[:, :, 0].float().T


class SplitQuantizer(nn.Module):
    """Folded, one table of projected entries: a frame's latent is the sum of one for each codebook."""

    table: Tensor  # folded
    offsets: Tensor

    def __init__(self, books: int, codes: int, width: int) -> None:
        super().__init__()
        self.rvq_first = ResidualQuantizer(1, codes, width)
        self.rvq_rest = ResidualQuantizer(books - 1, codes, width)
        self._books, self._codes = books, codes

    def fold(self) -> None:
        self.register_buffer("table", torch.cat((self.rvq_first.projected(), self.rvq_rest.projected())))
        self.register_buffer("offsets", torch.arange(self._books, device=self.table.device) * self._codes)
        del self.rvq_first, self.rvq_rest

    def forward(self, codes: Tensor) -> Tensor:
        """(B, T, books) int64 -> (B, T, width)."""
        return nn.functional.embedding(codes + self.offsets, self.table).sum(dim=2)
