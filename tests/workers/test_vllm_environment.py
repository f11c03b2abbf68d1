"""What a process's engines must agree on, and which steps on CUDA have a graph."""

import os
import sys
import types

import pytest

from workers.runners import vllm_environment
from workers.runners.vllm_environment import prepare_environment
from workers.settings import BadSettings


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.delitem(sys.modules, vllm_environment._READS_IT, raising=False)


def test_graphs_are_broken_where_prefills_have_some():
    prepare_environment("v2", batch_invariant=False, prefill_graphs=True)
    assert os.environ["VLLM_USE_BREAKABLE_CUDAGRAPH"] == "1"
    prepare_environment("v2", batch_invariant=False, prefill_graphs=False)
    assert os.environ["VLLM_USE_BREAKABLE_CUDAGRAPH"] == "0"


def test_an_attention_that_was_imported_without_breaks_is_not_captured(monkeypatch):
    """It would be in the graph as it was at the capture, with another prompt's keys."""
    prepare_environment("v2", batch_invariant=False, prefill_graphs=False)
    monkeypatch.setitem(sys.modules, vllm_environment._READS_IT, types.ModuleType("attention"))
    with pytest.raises(BadSettings, match="start a new one"):
        prepare_environment("v2", batch_invariant=False, prefill_graphs=True)


@pytest.mark.parametrize(
    ("decode", "prefill", "sizes"),
    [(64, 256, [64, 128, 256]), (128, 256, [128, 256]), (32, 128, [32, 64, 128]), (64, 40, [64]), (64, 100, [64, 100])],
)
def test_a_prefill_has_the_next_size_and_none_below_a_decode_s(decode, prefill, sizes):
    from workers.runners.vllm_runner import prefill_sizes

    assert prefill_sizes(decode, prefill) == sizes
