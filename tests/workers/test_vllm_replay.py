"""Known frames are computed again in chunks only where attention is seen to give the bits of one step each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.songs import admit, finish, song, sung
from tests.tiny_checkpoint import tiny_checkpoint
from workers.models.family import load_family
from workers.runners import vllm_replay
from workers.runners.vllm_replay import chunks_have_the_bits_of_steps
from workers.settings import TalkerSettings

JOBS, CHUNK = 8, 32  # songs at once, and so frames in a chunk; a prompt's tokens in a chunk
TRIED = {
    "heads": 4, "kv_heads": 2, "head_dim": 8, "dtype": torch.float32, "rows": 2, "chunk": 3, "block": 32,
    "positions": 8192, "device": "cpu",
}  # fmt: skip


def attention(queries: Tensor, keys: Tensor, values: Tensor, table: Tensor, seen: int) -> Tensor:
    """Causal attention, each row's newest positions one by one: (rows, n, heads, head_dim)."""
    rows, several = queries.shape[:2]
    attended = torch.empty_like(queries)
    for row in range(rows):
        blocks = table[row].long()
        k, v = (kept[blocks].flatten(0, 1).transpose(0, 1) for kept in (keys, values))
        for place in range(several):
            end = seen - several + place + 1
            newest = queries[row, place, :, None]
            attended[row, place] = F.scaled_dot_product_attention(newest, k[:, :end], v[:, :end], enable_gqa=True)[:, 0]
    return attended


def rounding_otherwise(at_once: Tensor, seen: int, *, beyond: int) -> Tensor:
    """A chunk's newest position, in its last row, has one number by a bit too large where many keys were seen."""
    if at_once.shape[1] > 1 and seen > beyond:
        at_once[-1, -1, -1, -1] = torch.nextafter(at_once[-1, -1, -1, -1], torch.tensor(torch.inf))
    return at_once


def test_an_attention_of_each_position_by_itself_may_have_chunks():
    assert chunks_have_the_bits_of_steps(**TRIED, attend=attention)


@pytest.mark.parametrize("beyond", [0, 200, 8000])
def test_a_bit_of_one_number_is_enough_to_have_steps(beyond):
    """However many keys it takes to show."""

    def attend(*inputs: Any) -> Tensor:
        return rounding_otherwise(attention(*inputs), inputs[-1], beyond=beyond)

    assert not chunks_have_the_bits_of_steps(**TRIED, attend=attend)


def test_what_no_song_can_see_is_not_tried():
    seen = []

    def attend(*inputs: Any) -> Tensor:
        seen.append(inputs[-1])
        return rounding_otherwise(attention(*inputs), inputs[-1], beyond=300)

    assert chunks_have_the_bits_of_steps(**TRIED | {"positions": 300}, attend=attend)
    assert 260 < max(seen) <= 300


def test_an_attention_that_forgets_what_comes_later_is_seen_through():
    """One that lets the positions of a chunk see one another's future gives them other bits than steps."""

    def attend(queries: Tensor, keys: Tensor, values: Tensor, table: Tensor, seen: int) -> Tensor:
        each = [attention(queries[:, [place]], keys, values, table, seen) for place in range(queries.shape[1])]
        return torch.cat(each, dim=1)

    assert not chunks_have_the_bits_of_steps(**TRIED, attend=attend)


# --- what the runner makes of it --------------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["chunks", "steps"])
def chunks_do(request, monkeypatch) -> bool:
    """Whether this machine's attention passes."""

    def tried(**asked: Any) -> bool:
        assert asked["rows"] == 2 and asked["chunk"] == JOBS
        return request.param

    monkeypatch.setattr(vllm_replay, "chunks_have_the_bits_of_steps", tried)
    return request.param


@pytest.fixture
def runner(chunks_do):
    """An engine of the CPU, which has its attention tried as a card has."""
    from workers.runners.vllm_runner import VllmRunner

    class Tried(VllmRunner):
        def _choose_replay(self) -> None:
            self._device = "cuda"
            super()._choose_replay()
            self._device = "cpu"

    torch.set_num_threads(1)
    talker = TalkerSettings(
        model_runner="v1", max_jobs=JOBS, max_model_len=512, prefill_chunk=CHUNK, options={"device": "cpu"}
    )
    runner = Tried(load_family("minimax_music3"), tiny_checkpoint(), talker)
    yield runner
    runner.close()


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_where_chunks_do_not_a_song_s_frames_are_replayed_one_by_one(runner, chunks_do, monkeypatch):
    alone = sung(finish(runner, admit(runner, runner.model, song(6))))
    scheduler, given = runner._core.scheduler, []
    schedule = scheduler.schedule

    def noted(*args: Any) -> Any:
        output = schedule(*args)
        given.append(max(output.num_scheduled_tokens.values(), default=0))
        return output

    history = admit(runner, runner.model, song(6))
    while history.draw < 20:
        runner.step()
    monkeypatch.setattr(scheduler, "schedule", noted)
    scheduler._preempt(scheduler._jobs[history.job])
    finish(runner, history)
    replayed = given[-(-len(runner.model.prompts(history.request)[0]) // CHUNK) :]
    assert max(replayed) == (JOBS if chunks_do else 1)
    assert sung(history) == alone
