"""Train talker and code predictor: `python -m workers.training.train_talker CODES OUT --minutes M`.

Each utterance is laid out as the served model will be prompted. All rows lie on the device; a step draws some.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from workers.training.code_speech import read_codes
from workers.training.corpus import read_utterances
from workers.training.packing import pack
from workers.training.prompts import Prompter
from workers.training.steps import Budget, CapturedStep, Figures, autocast, move, optimiser, remaining, report, set_rate
from workers.training.talker import Losses, Rows, TrainedTalker
from workers.training.voice import new_talker
from workers.training.weights import load_weights, save_weights

_BETAS = (0.9, 0.95)
_WARM_UP = 300  # steps to the full learning rate
_OF_PLACE = 0.2  # weight of the two losses that teach where in the text a frame is
_LENGTH = 1_536  # positions of a row
_HELD_OUT = 200  # utterances, the last ones of the corpus
_RESIDUAL_SHARE = 0.2  # of a batch's positions: of so many frames the residual codes are learned in a step
_CLIP = 1.0
_EVERY = 200  # steps between two lines of the report
_JUDGED = 10  # times that the held-out rows are judged in all


class Trainer:
    """The talker, and how it is moved.

    Args:
        rows: all there are, on the device.
        codes: (all frames, codebooks) int64, on the device.
        batch: rows of a step.
    """

    def __init__(
        self, talker: TrainedTalker, rows: Rows, codes: Tensor, batch: int, rate: float, *, eager: bool
    ) -> None:
        self._talker, self._rows, self._codes = talker, rows, codes
        self._device = codes.device
        self.captured = self._device.type == "cuda" and not eager
        self._batch, self._rate = batch, rate
        self._frames = int(_RESIDUAL_SHARE * batch * _LENGTH)
        self._parameters = list(talker.parameters())
        self._optimiser = optimiser(self._parameters, rate, betas=_BETAS, capture=self.captured)

    def set_rate(self, share: float) -> None:
        """Of the full learning rate."""
        set_rate(self._optimiser, share * self._rate)

    def draw(self) -> Tensor:
        """(batch,) int64: the rows of a step."""
        return torch.randint(len(self._rows.text), (self._batch,), device=self._device)

    def step(self, chosen: Tensor) -> Figures:
        """One step on the rows `chosen`."""
        losses = self._losses(chosen)
        of_codes = losses.first + (self._codes.shape[1] - 1) * losses.residual / 4
        total = of_codes + _OF_PLACE * (losses.phoneme + losses.place)
        move(self._optimiser, self._parameters, total, _CLIP)
        return {name: loss.detach() for name, loss in losses._asdict().items()}

    @torch.no_grad()
    def judge(self, rows: Rows) -> Figures:
        """The losses of held-out rows, four at a time."""
        self._talker.eval()
        sums = []
        for some in zip(*(field.split(4) for field in rows), strict=True):
            there = Rows(*(field.long() for field in some))
            with autocast(self._device):
                sums.append(torch.stack(self._talker(there, self._codes, min(512, int((there.next >= 0).sum())))))
        self._talker.train()
        return dict(zip(Losses._fields, torch.stack(sums).mean(dim=0), strict=True))

    def _losses(self, chosen: Tensor) -> Losses:
        with autocast(self._device):
            return self._talker(Rows(*(field[chosen].long() for field in self._rows)), self._codes, self._frames)


def train(trainer: Trainer, held_out: Rows, minutes: float) -> None:
    """Train for so long; the learning rate falls to a twentieth at its end."""
    begun, budget = time.monotonic(), Budget(minutes)
    step, spent, judged, run = 0, 0.0, 1, None
    while spent < 1:
        trainer.set_rate(min(1.0, (step + 1) / _WARM_UP) * remaining(spent))  # first: a capture takes steps too
        if run is None:
            run = CapturedStep(trainer.step, (trainer.draw(),), capture=trainer.captured)
        figures = run(trainer.draw())
        step += 1
        if step % _EVERY == 0:
            report(f"step {step}", figures, begun)
        spent = budget.spent()
        if judged < _JUDGED and spent >= judged / _JUDGED:
            judged += 1
            report("held out", trainer.judge(held_out), begun)
    report(f"step {step}", figures, begun)
    report("held out", trainer.judge(held_out), begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("codes", type=Path, help="what code_speech wrote")
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--from", dest="earlier", type=Path, help="the folder of an earlier run to go on from")
    parser.add_argument("--batch", type=int, default=24, help=f"rows of {_LENGTH} positions")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--eager", action="store_true", help="capture no CUDA graph of the step")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    prompter = Prompter()
    utterances = read_utterances(args.codes / "lines.jsonl")
    if len(utterances) <= _HELD_OUT:
        parser.error(f"{args.codes} has {len(utterances)} utterances, and {_HELD_OUT} are held out: code more speech")
    codes = torch.from_numpy(read_codes(args.codes)).to(device).long()
    begun = time.monotonic()
    kept, held_out = (
        _rows(pack(part, prompter.make, prompter.pad, _LENGTH, np.random.default_rng(0)), device)
        for part in (utterances[:-_HELD_OUT], utterances[-_HELD_OUT:])
    )
    print(f"{len(utterances)} utterances in {len(kept.text)} rows after {time.monotonic() - begun:.0f} s", flush=True)
    talker = new_talker().to(device).train()
    if args.earlier is not None:
        load_weights(args.earlier, "talker", {"talker": talker})
    trainer = Trainer(talker, kept, codes, args.batch, args.rate, eager=args.eager)
    train(trainer, held_out, args.minutes)
    save_weights(args.out, "talker", {"talker": talker})


def _rows(fields: dict[str, np.ndarray], device: torch.device) -> Rows:
    return Rows(**{name: torch.from_numpy(field).to(device) for name, field in fields.items()})


if __name__ == "__main__":
    main()
