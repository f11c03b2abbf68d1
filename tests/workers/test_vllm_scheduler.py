"""Pairs as one: the rows of a job are admitted, stepped, preempted and finished together, and every job ends.

The schedulers and their key-value memory are vLLM's own; only the forward is left out. `Rows` keeps books of what a
model runner would have in its cache, and refuses an output that does not follow from them.
"""

from __future__ import annotations

import copy
import json
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

pytest.importorskip("vllm")

import torch
from vllm import SamplingParams
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.engine import FinishReason
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from workers.runners.vllm_scheduler import AsyncPairScheduler, PairScheduler, PairScheduling, job_name

BLOCK = 16
FRAME, END = 0, 1
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 64, "hidden_size": 64,
    "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "max_position_embeddings": 4096, "torch_dtype": "float32",
}  # fmt: skip


# --- an engine without a model ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> VllmConfig:
    folder = tmp_path_factory.mktemp("qwen3")
    (folder / "config.json").write_text(json.dumps(QWEN3))
    return VllmConfig(
        model_config=ModelConfig(model=str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=512),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=False),
        scheduler_config=scheduling(),
    )


@pytest.fixture(scope="module")
def no_grammars(settings) -> StructuredOutputManager:
    return StructuredOutputManager(settings)


def scheduling(**changes) -> SchedulerConfig:
    defaults = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 512, "is_encoder_decoder": False}
    return SchedulerConfig(**defaults | changes)


@pytest.fixture(params=["sync-v1", "async-v1", "sync-v2", "async-v2"])
def new_engine(request, settings, no_grammars, monkeypatch):
    """Makes engines of each kind. `ours` is the project's part of additional_config; changes are SchedulerConfig's."""
    kind, runner = request.param.split("-")
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1" if runner == "v2" else "0")

    def new(blocks: int = 200, ours: dict | None = None, **changes) -> Engine:
        config = copy.copy(settings)
        config.scheduler_config = scheduling(**changes)
        config.additional_config = {"songline": ours or {}}
        scheduler_cls = AsyncPairScheduler if kind == "async" else PairScheduler
        scheduler = new_scheduler(scheduler_cls, config, no_grammars, blocks)
        assert scheduler.use_v2_model_runner == (runner == "v2")
        return Engine(scheduler, depth=2 if kind == "async" else 1)

    return new


def new_scheduler(scheduler_cls, config: VllmConfig, no_grammars, blocks: int, spec=None):
    spec = spec or FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    memory = KVCacheConfig(
        num_blocks=blocks + 1,  # vLLM keeps one for itself
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    config.cache_config = copy.copy(config.cache_config)
    config.cache_config.num_gpu_blocks = blocks + 1
    return scheduler_cls(config, memory, no_grammars, block_size=BLOCK, log_stats=True)


@dataclass
class Row:
    """A row as a model runner has it."""

    computed: int = 0
    blocks: list[int] = field(default_factory=list)


@dataclass
class Song:
    """A job, and what was seen of it."""

    prompt: int
    frames: int  # its budget
    stops_at: int | None = None  # it ends by itself at this draw
    rows: int = 2
    drawn: Counter = field(default_factory=Counter)  # by row
    cuts: list[tuple[int, int]] = field(default_factory=list)  # (position, chunk) of each of its steps
    steps: list[int] = field(default_factory=list)  # the engine's steps in which it was
    tokens: Counter = field(default_factory=Counter)  # that came out, by row
    ended: dict[int, FinishReason] = field(default_factory=dict)  # by row

    @property
    def length(self) -> int:
        return self.frames if self.stops_at is None else min(self.frames, self.stops_at)

    @property
    def reason(self) -> FinishReason | None:
        reasons = set(self.ended.values())
        assert len(reasons) <= 1 and len(self.ended) in (0, self.rows)
        return reasons.pop() if reasons else None


class Engine:
    """Schedules, draws and reports as vLLM's engine core does; `depth` steps are under way at once."""

    def __init__(self, scheduler, depth: int) -> None:
        self.scheduler, self.depth = scheduler, depth
        self.songs: dict[str, Song] = {}
        self.rows: dict[str, Row] = {}  # by request
        self.under_way: deque = deque()
        self.blocks = self.free_blocks
        self.step_index = 0
        self.victims: list[str] = []
        self.chunks: list[dict[str, int]] = []  # of each step, by request

    @property
    def free_blocks(self) -> int:
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    @property
    def running(self) -> list[str]:
        return list(dict.fromkeys(map(job_name, self.scheduler.running)))

    def add(self, job: str, prompt: int, frames: int, *, rows: int = 2, stops_at: int | None = None) -> Song:
        song = self.songs[job] = Song(prompt, frames, stops_at, rows)
        for row in range(rows):
            self.scheduler.add_request(request_of(job, row, rows=rows, prompt=prompt, frames=frames))
        return song

    def abort(self, *requests: str) -> None:
        self.scheduler.finish_requests(requests, RequestStatus.FINISHED_ABORTED)
        self.check()

    def step(self) -> None:
        """One turn of the engine: begin a step if there is room for one under way, else end the oldest."""
        executed = False
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            assert output.total_num_scheduled_tokens <= self.scheduler.max_num_scheduled_tokens
            self.chunks.append(dict(output.num_scheduled_tokens))
            self.check()
            self.under_way.append((output, self.execute(output)))
            executed = output.total_num_scheduled_tokens > 0
            self.step_index += 1
        if self.under_way and (len(self.under_way) == self.depth or not executed):
            self.end_step()

    def end_step(self) -> None:
        output, result = self.under_way.popleft()
        for outputs in self.scheduler.update_from_output(output, result).values():
            for row in outputs.outputs:
                job, index = row.request_id.split("/")
                self.songs[job].tokens[int(index)] += len(row.new_token_ids)
                if row.finish_reason is not None:
                    self.songs[job].ended[int(index)] = row.finish_reason
        self.check()

    def finish(self, limit: int = 20_000) -> None:
        while self.scheduler.has_requests() or self.under_way:
            self.step()
            limit -= 1
            assert limit, "the engine does not come to rest"
        assert not self.rows and self.free_blocks == self.blocks
        assert not self.scheduler.requests and not self.scheduler._jobs

    # --- the model runner's books -------------------------------------------------------------------------------------

    def execute(self, output) -> ModelRunnerOutput:
        for request in output.finished_req_ids:
            self.rows.pop(request, None)
        self.victims += [request for request in output.preempted_req_ids if request.endswith("/0")]
        v2 = self.scheduler.use_v2_model_runner
        if v2:
            for request in output.preempted_req_ids:
                del self.rows[request]
        else:
            for request in output.preempted_req_ids:
                assert request not in output.num_scheduled_tokens
                self.rows[request] = Row(computed=-1)
        stated: dict[str, int] = {}
        for new in output.scheduled_new_reqs:
            assert new.req_id not in self.rows
            self.rows[new.req_id] = Row(blocks=list(new.block_ids[0]))
            stated[new.req_id] = new.num_computed_tokens
            if v2:
                song, index = self.song_of(new.req_id)
                assert len(new.prefill_token_ids) == song.prompt + song.drawn[index]
        cached = output.scheduled_cached_reqs
        for request, computed, blocks in zip(
            cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True
        ):
            if request in cached.resumed_req_ids:
                assert not v2 and self.rows[request].computed == -1
                self.rows[request] = Row()
                song, index = self.song_of(request)
                assert len(cached.all_token_ids[request]) == song.prompt + song.drawn[index]
            self.rows[request].blocks += blocks[0] if blocks else []
            stated[request] = computed
        owned = Counter(block for row in self.rows.values() if row.computed >= 0 for block in row.blocks)
        assert not owned or max(owned.values()) == 1, "two rows share a block"
        assert stated.keys() == output.num_scheduled_tokens.keys()
        return self.draw(output.num_scheduled_tokens, stated)

    def draw(self, chunks: dict[str, int], stated: dict[str, int]) -> ModelRunnerOutput:
        sampled = []
        for request, chunk in chunks.items():
            row, (song, index) = self.rows[request], self.song_of(request)
            assert row.computed == stated[request]
            if index == 0:
                song.cuts.append((row.computed, chunk))
                song.steps.append(self.step_index)
            row.computed += chunk
            assert row.computed <= song.prompt + song.drawn[index] and row.computed <= len(row.blocks) * BLOCK
            if row.computed < song.prompt + song.drawn[index]:
                sampled.append([])
                continue
            song.drawn[index] += 1
            sampled.append([END if song.drawn[index] == song.stops_at else FRAME])
        return ModelRunnerOutput(
            req_ids=list(chunks), req_id_to_index={r: i for i, r in enumerate(chunks)}, sampled_token_ids=sampled
        )

    def song_of(self, request: str) -> tuple[Song, int]:
        job, index = request.split("/")
        return self.songs[job], int(index)

    # --- what holds at any moment -------------------------------------------------------------------------------------

    def check(self) -> None:
        scheduler = self.scheduler
        by_job: dict[str, list[Request]] = {}
        for request in scheduler.requests.values():
            by_job.setdefault(job_name(request), []).append(request)
        running, waiting = set(scheduler.running), set(scheduler.waiting)
        for job, rows in by_job.items():
            assert len({(r.num_computed_tokens, r.num_tokens, r.status, r in running) for r in rows}) == 1, job
            if len(rows) < self.songs[job].rows:
                assert not waiting & set(rows) and not running & set(rows)
        assert len(scheduler.running) <= scheduler.max_num_running_reqs
        held = sum(len(scheduler.kv_cache_manager.get_block_ids(r)[0]) for r in scheduler.requests)
        assert held + self.free_blocks == self.blocks


def request_of(
    job: str, row: int, *, rows: int = 2, prompt: int = 20, frames: int = 5, mark: object = None, params=None, **changes
) -> Request:
    mark = {"job": job, "row": row, "rows": rows} if mark is None else mark
    params = {"max_tokens": frames, "stop_token_ids": [END], "extra_args": {"songline": mark}} | (params or {})
    return Request(
        **{
            "request_id": f"{job}/{row}",
            "prompt_token_ids": [2] * prompt,
            "sampling_params": SamplingParams(**params),
            "pooling_params": None,
        }
        | changes
    )


def test_nothing_of_vllm_is_replaced_by_accident():
    meant = {"add_request", "finish_requests", "schedule", "update_from_output", "_enqueue_waiting_request"}
    meant |= {"_free_request"}
    ours = {name for name in vars(PairScheduling) if not name.startswith(("__", "_abc_"))}
    assert ours & set(dir(AsyncScheduler)) == meant


# --- together ---------------------------------------------------------------------------------------------------------


def test_a_lone_row_is_held_back(new_engine):
    engine = new_engine()
    engine.songs["a"] = song = Song(prompt=20, frames=5)
    engine.scheduler.add_request(request_of("a", 0))
    other = engine.add("b", prompt=20, frames=5)
    for _ in range(4):
        engine.step()
    assert other.steps and not song.steps
    engine.scheduler.add_request(request_of("a", 1))
    engine.finish()
    assert song.tokens == {0: 5, 1: 5} and song.reason == FinishReason.LENGTH


def test_a_lone_row_does_not_keep_the_engine_awake(new_engine):
    engine = new_engine()
    engine.songs["a"] = Song(prompt=20, frames=5)
    engine.scheduler.add_request(request_of("a", 1))
    assert not engine.scheduler.has_requests()
    engine.abort("a/1")
    engine.finish()


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_job_of_any_number_of_rows_ends_with_its_budget_or_by_itself(new_engine, rows):
    engine = new_engine()
    full = engine.add("full", prompt=33, frames=40, rows=rows)
    short = engine.add("short", prompt=7, frames=40, rows=rows, stops_at=9)
    engine.finish()
    assert full.tokens == dict.fromkeys(range(rows), 40) and full.reason == FinishReason.LENGTH
    assert short.tokens == dict.fromkeys(range(rows), 9) and short.reason == FinishReason.STOP


def test_no_step_is_run_past_the_budget(new_engine):
    engine = new_engine()
    song = engine.add("a", prompt=20, frames=12)
    engine.finish()
    assert song.drawn == {0: 12, 1: 12}


def test_a_song_ends_where_the_model_does(new_engine):
    engine = new_engine()
    song = engine.add("a", prompt=500, frames=100)
    engine.finish()
    assert song.tokens == song.drawn == {0: 12, 1: 12} and song.reason == FinishReason.LENGTH


def test_rows_given_different_tokens_are_an_error(new_engine):
    engine = new_engine()
    engine.add("a", prompt=20, frames=5)
    output = engine.scheduler.schedule()
    result = engine.execute(output)
    result.sampled_token_ids[1] = [END]
    with pytest.raises(RuntimeError, match="rows of job a parted"):
        engine.scheduler.update_from_output(output, result)


# --- chunks -----------------------------------------------------------------------------------------------------------


def prompt_cuts(song: Song) -> list[int]:
    return [chunk for position, chunk in song.cuts if position < song.prompt]


def test_a_chunk_leaves_a_decode_to_every_other_slot(new_engine):
    engine = new_engine(max_num_batched_tokens=64, max_num_seqs=8)
    song = engine.add("a", prompt=100, frames=3)
    engine.finish()
    assert prompt_cuts(song) == [29, 29, 29, 13]  # (64 - 6) / 2


def test_a_chunk_is_no_longer_than_the_threshold(new_engine):
    engine = new_engine(long_prefill_token_threshold=12)
    song = engine.add("a", prompt=30, frames=3)
    engine.finish()
    assert prompt_cuts(song) == [12, 12, 6]


def test_cuts_do_not_depend_on_the_load(new_engine):
    alone = new_engine()
    expected = alone.add("a", prompt=150, frames=3)
    alone.finish()
    engine = new_engine()
    others = [engine.add(f"b{i}", prompt=10 + 40 * i, frames=30) for i in range(3)]
    engine.step()
    song = engine.add("a", prompt=150, frames=3)
    engine.finish()
    assert prompt_cuts(song) == prompt_cuts(expected)
    assert all(other.tokens == {0: 30, 1: 30} for other in others)


def test_frames_never_wait_for_long_prompts(new_engine):
    engine = new_engine(max_num_batched_tokens=21, max_num_seqs=8)
    singing = [engine.add(f"a{i}", prompt=4, frames=200) for i in range(2)]
    while not all(song.tokens[0] for song in singing):
        engine.step()
    begun = engine.step_index
    late = [engine.add(f"late{i}", prompt=60, frames=4) for i in range(2)]
    while not all(song.tokens[0] for song in late):
        engine.step()
    assert prompt_cuts(late[0]) == [7] * 8 + [4]
    for song in singing:
        assert [step for step in song.steps if step >= begun] == list(range(begun, engine.step_index))


@pytest.mark.parametrize("ours", [{}, {"replay_chunk": 1}])
def test_an_exclusive_prefill_is_alone_in_its_step_and_frames_wait_for_one_at_most(new_engine, ours):
    engine = new_engine(ours={"exclusive_prefill": True, **ours}, blocks=40)
    songs = [engine.add(f"a{i}", prompt=4 + 9 * i, frames=90) for i in range(5)]
    engine.finish()
    assert engine.scheduler.preempted_jobs
    for chunks in engine.chunks:
        if any(chunk > 1 for chunk in chunks.values()):
            assert len({request.split("/")[0] for request in chunks}) == 1
    singing = [step for step, (position, _) in zip(songs[0].steps, songs[0].cuts, strict=True) if position >= 4]
    assert max(later - step for step, later in pairwise(singing)) == 2


def test_a_prompt_s_last_position_is_computed_among_the_decodes(new_engine):
    engine = new_engine(ours={"exclusive_prefill": True})
    first = engine.add("a", prompt=4, frames=30)
    while len(first.steps) < 6:
        engine.step()
    second = engine.add("b", prompt=5, frames=3)
    engine.finish()
    assert prompt_cuts(second) == [4, 1]
    before, last = second.steps[:2]
    assert {name.split("/")[0] for name in engine.chunks[before]} == {"b"}
    assert {name.split("/")[0] for name in engine.chunks[last]} == {"a", "b"}


def test_an_exclusive_prefill_may_have_the_whole_budget(new_engine):
    engine = new_engine(ours={"exclusive_prefill": True}, max_num_batched_tokens=64)
    song = engine.add("a", prompt=100, frames=3)
    engine.finish()
    assert prompt_cuts(song) == [32, 32, 32, 3, 1]


# --- admission --------------------------------------------------------------------------------------------------------


def test_a_job_is_admitted_only_if_all_its_rows_have_slots(new_engine):
    engine = new_engine(max_num_seqs=3)
    first, second = engine.add("a", prompt=5, frames=10), engine.add("b", prompt=5, frames=10)
    while first.reason is None:
        assert engine.running in ([], ["a"])
        engine.step()
    engine.finish()
    assert min(second.steps) > max(first.steps)


def test_jobs_are_admitted_in_their_order(new_engine):
    engine = new_engine(max_num_seqs=4)
    songs = [engine.add(f"{i}", prompt=5 + 40 * (i % 2), frames=8) for i in range(6)]
    engine.finish()
    first_steps = [song.steps[0] for song in songs]
    assert first_steps == sorted(first_steps)


def test_a_newcomer_leaves_a_block_to_each_running_row(new_engine):
    # a has 2 x 2 blocks of its 9, b wants 2 x 2: one would be left, and a's rows soon want two.
    engine = new_engine(blocks=9)
    first = engine.add("a", prompt=30, frames=20)
    while not first.tokens[0]:
        engine.step()
    second = engine.add("b", prompt=30, frames=2)
    engine.step()
    assert engine.running == ["a"]
    engine.finish()
    assert engine.scheduler.preempted_jobs == 0 and second.reason == FinishReason.LENGTH


def test_a_newcomer_waits_for_room_for_its_whole_prompt(new_engine):
    engine = new_engine(blocks=20)
    first = engine.add("a", prompt=60, frames=3)
    second = engine.add("b", prompt=130, frames=3)
    engine.finish()
    assert min(second.steps) > max(first.steps) and engine.scheduler.preempted_jobs == 0


def test_a_paused_engine_steps_nobody_and_admits_nobody(new_engine):
    engine = new_engine()
    song = engine.add("a", prompt=20, frames=30)
    for _ in range(4):
        engine.step()
    late = engine.add("late", prompt=20, frames=3)
    engine.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    steps = len(song.steps)
    for _ in range(4):
        engine.step()
    assert len(song.steps) > steps and not late.steps
    engine.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    assert engine.scheduler.schedule().num_scheduled_tokens == {}


# --- preemption -------------------------------------------------------------------------------------------------------


def test_memory_is_short_for_the_youngest_job_and_never_for_the_oldest(new_engine):
    engine = new_engine(blocks=24)
    songs = {name: engine.add(name, prompt=20, frames=100) for name in "abc"}
    engine.finish()
    assert engine.scheduler.preempted_jobs == len(engine.victims) > 0
    assert "a/0" not in engine.victims and engine.victims[0] == "c/0"
    assert all(song.tokens == {0: 100, 1: 100} for song in songs.values())
    assert [name for name, _ in sorted(songs.items(), key=lambda song: song[1].steps[-1])] == ["a", "b", "c"]
    assert songs["a"].cuts == [(0, 20), *((20 + n, 1) for n in range(99))]


def test_a_preempted_job_comes_back_only_when_its_draws_are_known(new_engine):
    engine = new_engine(blocks=24)
    if engine.depth == 1:
        pytest.skip("no draw is unknown when a step begins")
    songs = {name: engine.add(name, prompt=20, frames=100) for name in "abc"}
    engine.depth = 4  # with two steps under way, the last draws are in before there could be room again
    while not engine.victims:
        engine.step()
    assert any(request.num_stale_output_tokens for request in engine.scheduler.waiting)
    engine.abort("a/0")
    assert engine.free_blocks > 12
    engine.step()
    assert engine.running == ["b"]
    engine.finish()
    assert songs["c"].tokens == songs["c"].drawn == {0: 100, 1: 100}


def test_preempted_jobs_come_back_oldest_first_and_before_any_newcomer(new_engine):
    engine = new_engine(blocks=24)
    songs = {name: engine.add(name, prompt=20, frames=100) for name in "abcd"}
    while engine.scheduler.preempted_jobs < 2:
        engine.step()
    engine.add("late", prompt=1, frames=1)
    assert list(dict.fromkeys(map(job_name, engine.scheduler.waiting)))[-1] == "late"
    engine.finish()
    ends = [songs[name].steps[-1] for name in "abcd"]
    assert ends == sorted(ends)


@pytest.mark.parametrize("replay_chunk", [1, 5])
def test_a_preempted_job_repeats_the_cuts_of_its_prompt_and_then_its_frames(new_engine, replay_chunk):
    engine = new_engine(blocks=24, ours={"replay_chunk": replay_chunk}, long_prefill_token_threshold=15)
    songs = {name: engine.add(name, prompt=20, frames=100) for name in "abc"}
    engine.finish()
    assert engine.scheduler.preempted_jobs
    for song in songs.values():
        starts = [i for i, (position, _) in enumerate(song.cuts) if position == 0]
        for start, end in zip(starts, [*starts[1:], None], strict=True):
            life = song.cuts[start:end]
            assert life[:2] == [(0, 15), (15, 5)][: len(life)]
            assert all(chunk <= replay_chunk for _, chunk in life[2:])
    again = [chunk for song in songs.values() for position, chunk in song.cuts if position >= song.prompt]
    assert max(again) == replay_chunk


def test_without_a_replay_chunk_a_preempted_job_prefills_all_it_has(new_engine):
    engine = new_engine(blocks=24)
    songs = [engine.add(name, prompt=20, frames=100) for name in "abc"]
    engine.finish()
    assert (0, 29) in songs[2].cuts


def test_a_job_whose_prompt_is_too_long_for_the_memory_ends_in_an_error(new_engine):
    engine = new_engine(blocks=9)
    fine, hopeless = engine.add("a", prompt=20, frames=9), engine.add("b", prompt=80, frames=9)
    after = engine.add("c", prompt=20, frames=9)
    engine.finish()
    assert hopeless.reason == FinishReason.ERROR and not hopeless.steps
    assert fine.reason == after.reason == FinishReason.LENGTH


def test_a_job_that_grows_out_of_the_memory_ends_in_an_error_with_the_frames_that_fit(new_engine):
    engine = new_engine(blocks=9)
    song, after = engine.add("a", prompt=20, frames=100), engine.add("b", prompt=20, frames=9)
    engine.finish()
    assert song.reason == FinishReason.ERROR and song.tokens == song.drawn == {0: 45, 1: 45}  # 4 blocks a row, and one
    assert after.reason == FinishReason.LENGTH


# --- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("after", [0, 1, 3, 8])
def test_aborting_a_row_aborts_its_job(new_engine, row, after):
    engine = new_engine()
    other = engine.add("b", prompt=40, frames=12)
    engine.add("a", prompt=40, frames=12)
    for _ in range(after):
        engine.step()
    engine.abort(f"a/{row}")
    assert "a" not in set(map(job_name, engine.scheduler.requests.values()))
    engine.finish()
    assert other.tokens == {0: 12, 1: 12}


def test_a_preempted_job_can_be_aborted(new_engine):
    engine = new_engine(blocks=24)
    songs = {name: engine.add(name, prompt=20, frames=100) for name in "abc"}
    while not engine.scheduler.preempted_jobs:
        engine.step()
    engine.abort("c/1")
    engine.finish()
    assert songs["c"].reason is None and songs["b"].reason == FinishReason.LENGTH


def test_all_requests_can_be_finished_at_once(new_engine):
    engine = new_engine(max_num_seqs=4)
    for name in "abc":
        engine.add(name, prompt=20, frames=100)
    for _ in range(3):
        engine.step()
    finished = engine.scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
    assert len(finished) == 6
    engine.finish()


def test_a_job_that_comes_back_under_its_name_gets_none_of_its_former_draws(new_engine):
    engine = new_engine()
    engine.add("a", prompt=20, frames=30)
    for _ in range(5):
        engine.step()
    engine.abort("a/0")
    song = engine.add("a", prompt=100, frames=6)
    engine.step()
    assert len(song.cuts) == 1 and not song.tokens
    engine.finish()
    assert song.tokens == song.drawn == {0: 6, 1: 6}


# --- any load ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_under_any_load_all_jobs_end(new_engine, seed):
    dice = random.Random(seed)
    rows = dice.choice([1, 2, 2, 3])
    engine = new_engine(
        blocks=rows * 12 + dice.randrange(12),
        max_num_seqs=dice.choice([rows, 5, 8]),
        max_num_batched_tokens=dice.choice([8, 16, 64]),
        long_prefill_token_threshold=dice.choice([0, 5, 16]),
        ours={"replay_chunk": dice.choice([None, 1, 3]), "exclusive_prefill": dice.random() < 0.5},
    )
    aborted: set[str] = set()
    for number in range(30):
        for _ in range(dice.choice([0, 1, 5, 20])):
            engine.step()
        if dice.random() < 0.2 and (alive := sorted(engine.scheduler.requests)):
            victim = dice.choice(alive)
            aborted.add(job_name(engine.scheduler.requests[victim]))
            engine.abort(victim)
        prompt = dice.randrange(1, 90)
        stops_at = dice.choice([None, dice.randrange(1, 100)])
        engine.add(f"{number}", prompt, dice.randrange(1, 12 * BLOCK - prompt), rows=rows, stops_at=stops_at)
    engine.finish()
    for job, song in engine.songs.items():
        if job in aborted:
            assert song.reason is None
            continue
        assert song.reason == (FinishReason.STOP if song.stops_at == song.length else FinishReason.LENGTH)
        assert song.tokens == dict.fromkeys(range(rows), song.length)
    begun = [song.steps[0] for song in engine.songs.values() if song.steps]
    assert begun == sorted(begun)
    if engine.depth == 1:
        assert all(song.drawn == song.tokens for job, song in engine.songs.items() if job not in aborted)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("cache_config", {"enable_prefix_caching": True}, "enable_prefix_caching=False"),
        ("parallel_config", {"pipeline_parallel_size": 2}, "pipeline_parallel_size=1"),
        ("parallel_config", {"decode_context_parallel_size": 2}, "decode_context_parallel_size=1"),
        ("parallel_config", {"prefill_context_parallel_size": 2}, "prefill_context_parallel_size=1"),
        ("scheduler_config", {"policy": "priority"}, "policy='fcfs'"),
        ("scheduler_config", {"enable_chunked_prefill": False}, "enable_chunked_prefill=True"),
        ("scheduler_config", {"long_prefill_token_threshold_adaptive": True}, "adaptive=False"),
        ("scheduler_config", {"max_num_scheduled_tokens": 7}, "max_num_scheduled_tokens=8 or more"),
        ("aux_output_config", {"enable_return_routed_experts": True}, "enable_return_routed_experts=False"),
        ("model_config", {"runner_type": "pooling"}, "runner='generate'"),
        (None, {"speculative_config": object()}, "no speculative_config"),
        (None, {"kv_transfer_config": object()}, "no kv_transfer_config"),
        (None, {"ec_transfer_config": object()}, "no ec_transfer_config"),
        (None, {"lora_config": object()}, "enable_lora=False"),
        (None, {"additional_config": {"songline": {"replay_chunk": 0}}}, "a replay_chunk of 1"),
    ],
)
@pytest.mark.parametrize("scheduler_cls", [PairScheduler, AsyncPairScheduler])
def test_settings_that_part_pairs_are_refused(settings, no_grammars, scheduler_cls, section, change, message):
    config = copy.copy(settings)
    changed = config
    if section is not None:
        changed = copy.copy(getattr(config, section))
        setattr(config, section, changed)
    for name, value in change.items():
        setattr(changed, name, value)
    with pytest.raises(ValueError, match=message):
        new_scheduler(scheduler_cls, config, no_grammars, blocks=20)


def test_a_model_of_sliding_windows_is_refused(settings, no_grammars):
    windows = SlidingWindowSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32, sliding_window=64)
    with pytest.raises(ValueError, match="full attention"):
        new_scheduler(PairScheduler, copy.copy(settings), no_grammars, blocks=20, spec=windows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"params": {"extra_args": None}}, "must say job, row and rows"),
        ({"mark": {"job": "a", "row": 1}}, "must say job, row and rows"),
        ({"mark": {"job": "a", "row": 2, "rows": 2}}, "row 2 is none of 2 rows"),
        ({"mark": {"job": "a", "row": 1, "rows": 9}}, "do not fit in max_num_seqs=8"),
        ({"mark": {"job": "a", "row": 1, "rows": 3}}, "job a has 2 rows, not 3"),
        ({"mark": {"job": "a", "row": 0, "rows": 2}}, "has its row 0 already"),
        ({"request_id": "a/0"}, "here already"),
        ({"prompt": 21}, "prompts of one length"),
        ({"frames": 6}, "same max_tokens"),
        ({"prompt": 512}, "leaves no room"),
        ({"params": {"structured_outputs": StructuredOutputsParams(json_object=True)}}, "structured output"),
        ({"lora_request": object()}, "LoRA"),
        ({"mm_features": [object()]}, "multimodal"),
        ({"resumable": True}, "streamed input"),
        ({"sampling_params": None, "pooling_params": PoolingParams(task="embed")}, "pooling"),
    ],
)
def test_requests_that_are_no_row_of_their_job_are_refused(new_engine, change, message):
    engine = new_engine()
    song = engine.songs["a"] = Song(prompt=20, frames=5)
    engine.scheduler.add_request(request_of("a", 0))
    with pytest.raises(ValueError, match=message):
        engine.scheduler.add_request(request_of("a", 1, **change))
    engine.scheduler.add_request(request_of("a", 1))
    engine.finish()
    assert song.reason == FinishReason.LENGTH
