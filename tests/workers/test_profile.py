"""Who may go on with whose songs: workers whose bits are the same, and no others."""

import pytest
import torch

from tests.tiny_checkpoint import tiny_checkpoint
from workers.profile import computed_with, profile
from workers.run import load_acoustic
from workers.settings import load


@pytest.fixture
def cards(monkeypatch):
    names = {0: "card A", 1: "card A", 2: "card B"}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: names[device.index or 0])


def test_a_card_counts_by_its_kind_and_not_by_its_number(cards):
    digests = [profile("acoustic", options=computed_with({"device": f"cuda:{card}"})) for card in range(3)]
    assert digests[0] == digests[1] != digests[2]
    assert computed_with({"device": "cuda", "dtype": "bfloat16"}) == {"device": "card A", "dtype": "bfloat16"}
    assert computed_with({}) == computed_with({"device": "cpu"}) != computed_with({"device": "cuda"})


def test_an_acoustic_stage_of_other_options_is_of_another_profile():
    folder = tiny_checkpoint()
    own = load_acoustic(load("minimax_music3", folder)).profile
    told = load_acoustic(load("minimax_music3", folder, overrides={"acoustic": {"options": {"device": "cpu"}}}))
    fewer = load_acoustic(load("minimax_music3", folder, overrides={"acoustic": {"options": {"solver_steps": 20}}}))
    assert told.profile == own != fewer.profile
