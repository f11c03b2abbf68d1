"""Who hears in a frame's latents which phonemes are spoken: so that the codes say what is said, the first one most."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

_TIMES = 2  # in a frame


class Listener(nn.Module):
    """Needed in training alone.

    Args:
        width: of the latents.
        phonemes: how many there are.
    """

    def __init__(self, width: int, phonemes: int) -> None:
        super().__init__()
        self.of_first = nn.Linear(width, _TIMES * phonemes)
        self.of_all = nn.Linear(width, _TIMES * phonemes)

    def forward(self, first: Tensor, latents: Tensor, phonemes: Tensor) -> Tensor:
        """What it mishears, in nats.

        Args:
            first, latents: (B, frames, width), of the first codebook and of all that are used.
            phonemes: (B, frames, 2) int64, early and late in each frame.
        """
        wanted = phonemes.flatten()
        heard = (head(x).unflatten(-1, (_TIMES, -1)) for head, x in ((self.of_first, first), (self.of_all, latents)))
        return sum(F.cross_entropy(logits.flatten(0, -2).float(), wanted) for logits in heard)
