"""The talker as it is trained: rows of packed utterances in, what each frame's codes cost out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workers.models.qwen3_tts.talker import Beside
from workers.runners.torch_qwen3 import Qwen3, Qwen3Config
from workers.training.qwen3_forward import hidden_states, hidden_states_and_looks, init_decoder

NONE = -1  # in place of an index: nothing is there
END = -2  # in place of a frame: the utterance ends

_MISHEARD = 0.04  # of the codes that are fed back are others, as the model's own will be
# Of the frames that are fed back, so many tell nothing but their first code. Residual codes foretell what comes next,
# and are the most likely to be drawn wrong: who trusts in them loses the text.
_FIRST_CODE_ALONE = 0.3
_LOOKING = 2  # the layer whose first head looks at what is being spoken


class Rows(NamedTuple):
    """Packed utterances, (B, L) int64 each.

    text: ids of text tokens. codec: of the talker's vocabulary, or NONE. frame: the frame whose codes are fed in, an
    index in all codes, or NONE. next: the frame that is drawn there, END or NONE. spoken: where in the row that text
    token is which is spoken in that frame, or NONE. utterance: which one of the row. position: in its utterance.
    """

    text: Tensor
    codec: Tensor
    frame: Tensor
    next: Tensor
    spoken: Tensor
    utterance: Tensor
    position: Tensor


class Losses(NamedTuple):
    """Means, in nats: of first codes and ends, of the residual codes, of the phoneme being spoken, of its place."""

    first: Tensor
    residual: Tensor
    phoneme: Tensor
    place: Tensor


class TrainedTalker(nn.Module):
    """Parameters have the names of a checkpoint's, below `talker.`, but for `aligned`, which is not exported.

    Args:
        beside: what the talker has beside its decoder.
        decoder: the decoder's sizes.
        pad, end: ids of the text's padding token and of the talker's end.
    """

    def __init__(self, beside: Beside, decoder: Qwen3Config, *, pad: int, end: int) -> None:
        super().__init__()
        self.beside = beside
        self.model = Qwen3(decoder)
        del self.model.embed_tokens
        self.aligned = nn.Linear(decoder.hidden_size, beside.text_embedding.num_embeddings)
        self._pad, self._end = pad, end
        for module in (self.beside, self.model):
            init_decoder(module)
        nn.init.normal_(self.beside.text_embedding.weight, std=0.5)
        nn.init.normal_(self.beside.codec_embedding.weight, std=0.2)
        for table in self.beside.code_predictor.model.codec_embedding:
            nn.init.normal_(table.weight, std=0.2)

    def forward(self, rows: Rows, codes: Tensor, frames: int) -> Losses:
        """The losses of a batch of rows.

        Args:
            codes: (all frames, codebooks) int64.
            frames: of so many, chosen at random, the residual codes are learned; there must be as many.
        """
        hidden, looks = self._hidden(rows, codes)
        phonemes = rows.text.gather(1, rows.spoken.clamp(min=0)).masked_fill(rows.spoken == NONE, NONE)
        return Losses(
            self._first(hidden, rows.next, codes),
            self._residual(hidden, rows.next, codes, frames),
            _loss(self.aligned(hidden), phonemes),
            _loss(looks, rows.spoken),
        )

    def hidden(self, rows: Rows, codes: Tensor) -> Tensor:
        """(B, L, hidden): the talker's hidden states, from which first codes are drawn."""
        return self._hidden(rows, codes)[0]

    def _hidden(self, rows: Rows, codes: Tensor) -> tuple[Tensor, Tensor]:
        """And (B, L, L), where the head looks that is to look at what is being spoken."""
        heard = codes[rows.frame.clamp(min=0)]
        embeds = self._text(rows.text) + self._codec(rows.codec) + self._fed_back(heard, rows.frame != NONE)
        utterances = rows.utterance
        seen = utterances[:, :, None] == utterances[:, None]
        seen = seen & torch.ones_like(seen[0]).tril()
        return hidden_states_and_looks(self.model, embeds, rows.position, seen, _LOOKING)

    def residual_logits(self, hidden: Tensor, codes: Tensor) -> list[Tensor]:
        """Of each residual codebook, (n, codes), for frames of (n, codebooks) codes drawn from (n, hidden) states."""
        predictor = self.beside.code_predictor
        inputs = [hidden, F.embedding(codes[:, 0], self.beside.codec_embedding.weight)]
        inputs += [
            F.embedding(code, table.weight)
            for table, code in zip(predictor.model.codec_embedding[:-1], codes[:, 1:-1].unbind(1), strict=True)
        ]
        projected = predictor.project(torch.stack([x.to(hidden.dtype) for x in inputs], dim=1))
        positions = torch.arange(projected.shape[1], device=projected.device)
        states = hidden_states(predictor.model, projected, positions)
        return [head(states[:, codebook]) for codebook, head in enumerate(predictor.lm_head, start=1)]

    def _text(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.beside.text_projection(self.beside.text_embedding.weight))

    def _codec(self, ids: Tensor) -> Tensor:
        return F.embedding(ids.clamp(min=0), self.beside.codec_embedding.weight) * (ids != NONE)[..., None]

    def _fed_back(self, codes: Tensor, there: Tensor) -> Tensor:
        """(B, L, codebooks) -> (B, L, hidden): the sum of the codes' embeddings, some of them misheard."""
        predictor = self.beside.code_predictor
        if self.training:
            others = torch.randint_like(codes, predictor.codes)
            misheard = torch.rand(codes.shape, device=codes.device) < _MISHEARD
            alone = torch.rand(codes.shape[:-1], device=codes.device) < _FIRST_CODE_ALONE
            misheard[..., 1:] |= alone[..., None]
            codes = torch.where(misheard, others, codes)
        total = F.embedding(codes[..., 0], self.beside.codec_embedding.weight)
        for table, code in zip(predictor.model.codec_embedding, codes[..., 1:].unbind(-1), strict=True):
            total = total + F.embedding(code, table.weight)
        return total * there[..., None]

    def _first(self, hidden: Tensor, following: Tensor, codes: Tensor) -> Tensor:
        wanted = codes[following.clamp(min=0), 0].masked_fill(following == END, self._end)
        return _loss(self.beside.codec_head(hidden), wanted.masked_fill(following == NONE, NONE))

    def _residual(self, hidden: Tensor, following: Tensor, codes: Tensor, frames: int) -> Tensor:
        chance = torch.rand(following.shape, device=following.device).masked_fill(following < 0, -1.0)
        chosen = chance.flatten().topk(frames).indices
        of_chosen = codes[following.flatten()[chosen]]
        logits = self.residual_logits(hidden.flatten(0, 1)[chosen], of_chosen)
        losses = [_loss(one, of_chosen[:, codebook]) for codebook, one in enumerate(logits, start=1)]
        return torch.stack(losses).mean()


def _loss(logits: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2).float(), wanted.flatten(), ignore_index=NONE)
