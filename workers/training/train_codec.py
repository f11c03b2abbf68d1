"""Train the codec: `python -m workers.training.train_codec SPEECH OUT --minutes M`.

First by spectra, and by what a listener makes out of its codes; then critics join, who teach it what spectra miss.
Time is the budget: the learning rate falls to a twentieth at its end. With `--codes-stay`, an earlier run's decoder
goes on alone, while a talker learns the codes.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor

from workers.models.qwen3_tts.config import FRAME_SAMPLES
from workers.training.codec import Codec
from workers.training.corpus import Speech
from workers.training.discriminators import Discriminators, critics_loss, decoder_losses
from workers.training.listener import Listener
from workers.training.sizes import CODEBOOKS, decoder_sizes
from workers.training.spectra import SpectralDistance
from workers.training.steps import Budget, CapturedStep, Figures, autocast, move, optimiser, remaining, report, set_rate
from workers.training.weights import load_weights, save_weights

_BETAS = (0.8, 0.99)
_WARM_UP = 200  # steps to the full learning rate
_WEIGHTS = {"spectral": 15.0, "commit": 0.5, "phonemes": 1.0, "pleasing": 2.0, "matching": 2.0}
_HEARD = 8  # frames of each crop that the critics hear
_AT_START = 0.2  # crops that begin where an utterance does
_FEWER_BOOKS = 0.25  # crops for which not all codebooks are used
_CLIP = 10.0
_EVERY = 100  # steps between two lines of the report


class Crops:
    """Random crops of all speech, which lies on the device.

    Args:
        batch: crops.
        frames: of each.

    Attributes:
        phonemes: how many there are.
    """

    def __init__(self, speech: Speech, batch: int, frames: int, device: torch.device) -> None:
        self._sound = torch.tensor(speech.frames, device=device)
        heard, self.phonemes = speech.phonemes()
        self._heard = torch.tensor(heard, device=device)
        self._starts = torch.tensor([utterance.start for utterance in speech.utterances], device=device)
        self._starts = self._starts[self._starts < len(self._sound) - frames]
        self._batch, self._device = batch, device
        self._within = torch.arange(frames, device=device)

    def draw(self) -> tuple[Tensor, Tensor]:
        """The sound, (batch, frames * 1,920) float32; what is heard of it, (batch, frames, 2) int64 phonemes."""
        last = len(self._sound) - len(self._within)
        anywhere = torch.randint(last, (self._batch,), device=self._device)
        begun = self._starts[torch.randint(len(self._starts), (self._batch,), device=self._device)]
        starts = torch.where(torch.rand(self._batch, device=self._device) < _AT_START, begun, anywhere)
        frames = starts[:, None] + self._within
        return self._sound[frames].flatten(1).float() / 32768, self._heard[frames].long()


class Trainer:
    """The codec, its critics, and how both are moved; beside the codec, who listens to its codes."""

    def __init__(
        self, codec: Codec, critics: Discriminators, listener: Listener, rate: float, device: torch.device, *,
        eager: bool, fewer_books: float,
    ) -> None:  # fmt: skip
        self.codec, self.critics, self._listener = codec.to(device), critics.to(device), listener.to(device)
        self._distance = SpectralDistance().to(device)
        self._device = device
        self.captured = device.type == "cuda" and not eager
        self._moved = [one for module in (codec, listener) for one in module.parameters() if one.requires_grad]
        self._of_codec = optimiser(self._moved, rate, betas=_BETAS, capture=self.captured)
        self._of_critics = optimiser(list(critics.parameters()), rate, betas=_BETAS, capture=self.captured)
        self._rate, self._fewer_books = rate, fewer_books

    def set_rate(self, share: float) -> None:
        """Of the full learning rate."""
        set_rate(self._of_codec, share * self._rate)
        set_rate(self._of_critics, share * self._rate)

    def by_spectra(self, sound: Tensor, phonemes: Tensor) -> Figures:
        """One step without critics."""
        _, losses = self._made(sound, phonemes)
        total = sum(_WEIGHTS[name] * loss for name, loss in losses.items())
        move(self._of_codec, self._moved, total, _CLIP)
        return {name: loss.detach() for name, loss in losses.items()}

    def with_critics(self, sound: Tensor, phonemes: Tensor) -> Figures:
        """One step of the critics, and one of the codec."""
        made, losses = self._made(sound, phonemes)
        with autocast(self._device):
            true_heard, made_heard = self._heard(sound, made)
            verdict = critics_loss(self.critics(true_heard), self.critics(made_heard.detach()))
        move(self._of_critics, list(self.critics.parameters()), verdict, _CLIP)
        with autocast(self._device):
            with torch.no_grad():
                of_true = self.critics(true_heard)
            losses["pleasing"], losses["matching"] = decoder_losses(of_true, self.critics(made_heard))
        total = sum(_WEIGHTS[name] * loss for name, loss in losses.items())
        move(self._of_codec, self._moved, total, _CLIP)
        return {name: loss.detach() for name, loss in {**losses, "critics": verdict}.items()}

    def _made(self, sound: Tensor, phonemes: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The sound as decoded again, and its losses by name."""
        with autocast(self._device):
            heard = self.codec(sound, self._kept(len(sound)))
            misheard = self._listener(heard.first, heard.latents, phonemes)
        distance = self._distance(heard.sound, sound)
        return heard.sound, {"spectral": distance, "commit": heard.loss, "phonemes": misheard}

    def _kept(self, batch: int) -> Tensor:
        """How many codebooks each crop's sound is made of."""
        fewer = torch.randint(1, CODEBOOKS, (batch,), device=self._device)
        all_ = torch.full_like(fewer, CODEBOOKS)
        return torch.where(torch.rand(batch, device=self._device) < self._fewer_books, fewer, all_)

    def _heard(self, true: Tensor, made: Tensor) -> tuple[Tensor, Tensor]:
        """The same random part of each, which begins after the decoder has seen some of its past."""
        frames = true.shape[1] // FRAME_SAMPLES
        first = torch.randint(frames - _HEARD + 1, (len(true), 1), device=self._device) * FRAME_SAMPLES
        at = first + torch.arange(_HEARD * FRAME_SAMPLES, device=self._device)
        return true.gather(1, at), made.gather(1, at)


def train(trainer: Trainer, crops: Crops, out: Path, minutes: float, alone: float) -> None:
    """Train for so long, the first share `alone` of it without critics, and write the weights."""
    begun, budget = time.monotonic(), Budget(minutes)
    step, spent, run = 0, 0.0, None
    while spent < 1:
        with_critics = spent >= alone
        trainer.set_rate(min(1.0, (step + 1) / _WARM_UP) * remaining(spent))  # first: a capture takes steps too
        if run is None or (with_critics and run.step != trainer.with_critics):
            chosen = trainer.with_critics if with_critics else trainer.by_spectra
            run = CapturedStep(chosen, crops.draw(), capture=trainer.captured)
        figures = run(*crops.draw())
        step += 1
        if step % _EVERY == 0:
            report(f"step {step}", figures, begun)
        spent = budget.spent()
    report(f"step {step}", figures, begun)
    save_weights(out, "codec", {"codec": trainer.codec, "critics": trainer.critics})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("speech", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--from", dest="earlier", type=Path, help="the folder of an earlier run to go on from")
    parser.add_argument("--alone", type=float, default=0.2, help="share of the time before critics join")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--frames", type=int, default=32, help="of a crop")
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--codes-stay", action="store_true", help="train what comes after the codes alone")
    parser.add_argument("--eager", action="store_true", help="capture no CUDA graph of the step")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.codes_stay and args.earlier is None:
        parser.error("--codes-stay keeps the codes of an earlier run: name its folder with --from")
    device = torch.device(args.device)
    torch.manual_seed(0)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    codec, critics = Codec(decoder_sizes()), Discriminators()
    if device.type == "cuda":
        codec.decoder.compile_kernels()
    if args.earlier is not None:
        load_weights(args.earlier, "codec", {"codec": codec, "critics": critics})
    crops = Crops(Speech(args.speech), args.batch, args.frames, device)
    listener = Listener(codec.sizes.codebook_width, crops.phonemes)
    codec.train()
    if args.codes_stay:
        codec.keep_codes()
    fewer_books = 0 if args.codes_stay else _FEWER_BOOKS
    trainer = Trainer(codec, critics, listener, args.rate, device, eager=args.eager, fewer_books=fewer_books)
    train(trainer, crops, args.out, args.minutes, args.alone)


if __name__ == "__main__":
    main()
