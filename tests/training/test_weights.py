"""Weights go from run to run in files of a bounded size, and come back."""

import pytest
import torch
from torch import nn

from tests.training.small import DECODER
from workers.training import weights
from workers.training.codec import Codec


def test_weights_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "_FILE_BYTES", 60_000)
    codec, other = Codec(DECODER), Codec(DECODER)
    weights.save_weights(tmp_path, "codec", {"codec": codec, "head": nn.Linear(3, 2)})
    files = sorted(tmp_path.iterdir())
    assert len(files) > 3
    largest = max(tensor.nbytes for tensor in codec.state_dict().values())
    assert max(file.stat().st_size for file in files) < 60_000 + largest + 10_000
    weights.load_weights(tmp_path, "codec", {"codec": other})
    for name, tensor in codec.state_dict().items():
        exact = name.endswith(("cluster_usage", "embedding_sum"))
        rounded = tensor if exact else tensor.to(torch.bfloat16).float()
        assert torch.equal(other.state_dict()[name], rounded), name


def test_an_earlier_run_leaves_nothing_behind(tmp_path, monkeypatch):
    linear = nn.Linear(100, 100)
    monkeypatch.setattr(weights, "_FILE_BYTES", 100)
    weights.save_weights(tmp_path, "one", {"linear": linear})
    monkeypatch.setattr(weights, "_FILE_BYTES", 1_000_000)
    weights.save_weights(tmp_path, "one", {"linear": linear})
    assert len(list(tmp_path.iterdir())) == 1


def test_no_weights_and_strange_ones_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no codec-"):
        weights.load_weights(tmp_path, "codec", {})
    weights.save_weights(tmp_path, "one", {"linear": nn.Linear(3, 2)})
    with pytest.raises(RuntimeError, match="bias"):
        weights.load_weights(tmp_path, "one", {"linear": nn.Linear(3, 2, bias=False)})
