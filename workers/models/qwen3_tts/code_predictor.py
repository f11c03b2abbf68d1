"""The code predictor: a small Qwen3 decoder over a frame's 16 positions, which gives codes 1..15 their logits.

Position 0 is the talker's hidden state, position c + 1 the embedding of code c. The module has the published parameter
names; fused, it holds the embeddings as one table, and beside it what the decoder's input projection makes of them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workers.runners.torch_qwen3 import Qwen3, Qwen3Config

_ROWS_AT_ONCE = 4096  # of a table that is projected when it is loaded

# Each layer's keys and values of the frame so far: (2, rows, kv_heads, positions, head_dim).
Cache = list[Tensor]


class _Decoder(Qwen3):
    """Qwen3's layers, with a table of embeddings for each residual codebook in place of the one."""

    def __init__(self, config: Qwen3Config, codebooks: int, width: int) -> None:
        super().__init__(config)
        del self.embed_tokens
        self.codec_embedding = nn.ModuleList(nn.Embedding(config.vocab_size, width) for _ in range(codebooks - 1))


class CodePredictor(nn.Module):
    """The residual codes' embeddings, decoder and heads.

    Args:
        config: the decoder's; its vocabulary is a residual codebook.
        codebooks: of a frame, the talker's own included.
        width: of the talker's hidden states, and of the embeddings.
    """

    def __init__(self, config: Qwen3Config, codebooks: int, width: int) -> None:
        super().__init__()
        self.config = config
        self.codebooks = codebooks
        self.codes = config.vocab_size
        self.model = _Decoder(config, codebooks, width)
        self.lm_head = nn.ModuleList(
            nn.Linear(config.hidden_size, config.vocab_size, bias=False) for _ in range(codebooks - 1)
        )
        self.small_to_mtp_projection = (
            nn.Identity() if width == config.hidden_size else nn.Linear(width, config.hidden_size)
        )

    def fuse(self) -> CodePredictor:
        """Fuse products of one input, and the tables; the weights must be in. Names are others from then on."""
        self.model.fuse()
        self.embeddings = torch.cat([table.weight for table in self.model.codec_embedding])
        del self.model.codec_embedding
        self._projected = self.project_table(self.embeddings)
        device = self.embeddings.device
        self._offsets = torch.arange(self.codebooks - 1, device=device) * self.codes
        self._rotary = self.model.rotary(torch.arange(self.codebooks, device=device))
        return self

    def project(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., hidden): the decoder's input."""
        return self.small_to_mtp_projection(x)

    def project_table(self, table: Tensor) -> Tensor:
        """(rows, width) -> (rows, hidden), in chunks."""
        return torch.cat([self.project(rows) for rows in table.split(_ROWS_AT_ONCE)])

    def embed(self, codes: Tensor) -> Tensor:
        """(n, codebooks - 1) int64, a frame's residual codes -> (n, codebooks - 1, width)."""
        return F.embedding(codes + self._offsets, self.embeddings)

    def embed_input(self, codes: Tensor, codebook: int) -> Tensor:
        """(n,) int64 codes of `codebook` (1..15) -> (n, hidden): their projected embeddings."""
        return F.embedding(codes + (codebook - 1) * self.codes, self._projected)

    def new_cache(self, rows: int) -> Cache:
        """For one frame of `rows` rows."""
        config = self.config
        shape = (2, rows, config.num_key_value_heads, self.codebooks, config.head_dim)
        return [self.embeddings.new_zeros(shape) for _ in self.model.layers]

    def forward(self, inputs: Tensor, cache: Cache, start: int) -> Tensor:
        """The hidden state after the newest position; the module must be fused.

        Args:
            inputs: (rows, positions, hidden), the positions from `start` on: two at the frame's start, then one at a
                time.
            cache: what `new_cache` gave, filled up to `start`.

        Returns:
            (rows, hidden); the head of codebook `start + positions - 1` turns it into logits.
        """
        rows, positions, _ = inputs.shape
        end = start + positions
        seen = torch.ones(positions, end, dtype=torch.bool, device=inputs.device).tril_(start)

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            cached = cache[layer]
            for which, new in enumerate((keys, values)):
                cached[which, :, :, start:end] = new.unflatten(0, (rows, positions)).transpose(1, 2)
            # Queries that share a key head are stacked, so that each key head meets its queries in one product.
            grouped = queries.view(rows, positions, cached.shape[2], -1, queries.shape[-1])
            grouped = grouped.permute(0, 2, 3, 1, 4).flatten(2, 3)
            group = grouped.shape[2] // positions
            mask = seen.repeat(group, 1) if positions > 1 else None  # a single position sees all before it
            attended = F.scaled_dot_product_attention(grouped, *cached[..., :end, :], attn_mask=mask)
            return attended.unflatten(2, (group, positions)).permute(0, 3, 1, 2, 4).reshape(rows * positions, -1)

        rotary = tuple(table[start:end].repeat(rows, 1) for table in self._rotary)
        return self.model(inputs.flatten(0, 1), rotary, attend).view(rows, positions, -1)[:, -1]
