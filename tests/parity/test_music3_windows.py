"""Windows equal the authors' pipeline, at every length."""

from types import SimpleNamespace

import pytest

pytest.importorskip("diffusers")

import torch
from diffusers.modular_pipelines.minimax_music3.before_denoise import MiniMaxMusic3PrepareChunksStep
from diffusers.modular_pipelines.modular_pipeline import PipelineState

from workers.models.minimax_music3.config import PLAN


def reference_starts(frames: int) -> list[int]:
    state = PipelineState()
    state.set("frame_hiddens", torch.zeros(1, frames, 1))
    MiniMaxMusic3PrepareChunksStep()(SimpleNamespace(), state)
    return state.get("chunk_starts")


def test_windows_at_every_length():
    for frames in range(1, 1001):
        bounds = [PLAN.bounds(index, frames) for index in range(PLAN.count(frames))]
        assert bounds == [(start, min(start + 200, frames)) for start in reference_starts(frames)], frames


def test_a_window_is_whole_only_once_it_is_known_not_to_be_the_last():
    for frames in range(1, 1001):
        longer = PLAN.whole(frames)
        # Whatever comes, these stay whole and are followed by another; the next one may still be the last.
        assert all(PLAN.count(total) > longer for total in range(frames, frames + 300))
        assert all(PLAN.bounds(index, frames)[1] == index * 100 + 200 for index in range(longer))
        assert PLAN.count(frames) == longer + 1
