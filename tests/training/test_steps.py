"""The learning rate rises before the first step, those of a capture included, and falls to a twentieth."""

import pytest
import torch

from workers.training import steps, train_codec, train_talker
from workers.training.steps import Budget, remaining


class Trainer:
    """Notes the rates that it is given; a step of it is no work."""

    captured = True

    def __init__(self, rates: list[float]) -> None:
        self._rates = rates

    def set_rate(self, share: float) -> None:
        self._rates.append(share)

    def draw(self) -> torch.Tensor:
        return torch.zeros(1)

    def step(self, *_: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": torch.zeros(())}

    by_spectra = with_critics = step

    def judge(self, _: object) -> dict[str, torch.Tensor]:
        return {}


@pytest.mark.parametrize("module", [train_codec, train_talker])
def test_a_capture_s_own_steps_are_taken_at_the_first_rate(module, monkeypatch):
    rates: list[float] = []
    at_capture: list[list[float]] = []

    class Captured:
        def __init__(self, step, inputs, *, capture: bool) -> None:
            at_capture.append([*rates])
            self.step = step

        def __call__(self, *inputs: torch.Tensor) -> dict[str, torch.Tensor]:
            return self.step(*inputs)

    monkeypatch.setattr(module, "CapturedStep", Captured)
    monkeypatch.setattr(train_codec, "save_weights", lambda *_: None)
    trainer = Trainer(rates)
    trainer.codec = trainer.critics = None
    if module is train_codec:
        train_codec.train(trainer, trainer, None, minutes=1e-6, alone=1.0)
    else:
        train_talker.train(trainer, None, minutes=1e-6)
    assert at_capture[0] == [pytest.approx(1 / module._WARM_UP)]


def test_the_rate_falls_to_a_twentieth():
    assert remaining(0) == 1 and remaining(1) == pytest.approx(0.05) == remaining(1.5)


def test_what_a_training_is_stopped_for_is_not_counted(monkeypatch):
    now = 100.0
    monkeypatch.setattr(steps.time, "monotonic", lambda: now)
    budget = Budget(minutes=1)
    now += 3
    assert budget.spent() == pytest.approx(3 / 60)
    now += 600
    assert budget.spent() == pytest.approx((3 + steps._LONGEST_S) / 60)
