"""The GPU bench tells songs apart, keeps what a fallen child gave, and counts a step's kernels where they belong."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from broker_schemas.events import JobRequested
from tests.bench.gpu import sections
from tests.bench.gpu.bench import Bench, NotRun
from tests.bench.gpu.kernels import by_launch
from tests.bench.gpu.plans import DRY
from tests.bench.gpu.playing import Stage
from tests.bench.gpu.report import table
from tests.bench.gpu.songs import Scenario, Song, Visit, pool
from tests.tiny_checkpoint import tiny_checkpoint
from workers.run import LoadedTalker
from workers.settings import merge
from workers.talker.frames import FrameHistory

SONG = Song(seed=1, frames=12)


class Talker:
    """Needs no weights."""

    rows, lead = 1, 1

    def prompts(self, request) -> list[list[int]]:
        return [[1, 2, 3]]

    def max_frames(self, request) -> int:
        return request.params["max_new_tokens"]


class Runner:
    """Two at once; codes and conditioning of a draw are its number and the seed, and, where it `leaks`, the company."""

    def __init__(self, leaks: bool = False) -> None:
        self.leaks = leaks
        self.songs: dict[str, FrameHistory] = {}
        self.most = 0

    @property
    def free_jobs(self) -> int:
        return 2 - len(self.songs)

    def admit(self, history: FrameHistory, prompts: list[list[int]]) -> None:
        self.songs[history.job] = history
        self.most = max(self.most, len(self.songs))

    def free(self, job: str) -> int:
        del self.songs[job]
        return 1

    def step(self) -> list[FrameHistory]:
        company = len(self.songs) if self.leaks else 0
        for history in self.songs.values():
            codes = history.next_forced
            if codes is None:
                codes = np.array([history.draw, history.request.seed, 0], np.int16)
            row = np.array([history.draw, company], np.float32) if history.wants_conditioning else None
            history.add(codes, row)
        return list(self.songs.values())


def stage(**how) -> Stage:
    def request(song: Song) -> JobRequested:
        params = {"max_new_tokens": song.frames}
        return JobRequested(model="m", input="la", params=params, seed=song.seed, owner="o", deadline=0)

    return Stage(LoadedTalker(Talker(), Runner(**how), "profile"), request)


def outcomes(stage: Stage, *visits: Visit) -> list[dict]:
    return stage.play(Scenario("some", visits))["songs"]


def test_the_same_song_is_the_same_alone_and_in_company() -> None:
    on = stage()
    [alone] = outcomes(on, Visit(SONG))
    company = outcomes(on, Visit(SONG, arrives=3), Visit(Song(2, 30)), Visit(Song(3, 5)))
    assert len(company) == 3
    assert sections.difference(next(song for song in company if song["song"] == SONG.name), alone) == ""
    assert on.talker.runner.most == 2
    assert not on.talker.runner.songs


def test_a_runner_whose_bits_depend_on_the_company_is_found_out() -> None:
    on = stage(leaks=True)
    [alone] = outcomes(on, Visit(SONG))
    first, _ = outcomes(on, Visit(SONG), Visit(Song(2, 30), arrives=6))
    assert sections.difference(first, alone) == "conditioning of frame 5"


def test_another_code_another_end_and_another_length_are_differences() -> None:
    [song] = outcomes(stage(), Visit(SONG))
    other = {**song, "codes": [*song["codes"][:4], "other", *song["codes"][5:]]}
    assert sections.difference(other, song) == "draw 4"
    assert sections.difference({**song, "reason": "stop"}, song) == "12 frames, stop"
    assert "11 rows" in sections.difference({**song, "rows": song["rows"][1:]}, {**song, "rows": song["rows"][1:] * 2})


def test_who_leaves_gives_no_outcome_and_frees_its_rows() -> None:
    on = stage()
    [stayed] = outcomes(on, Visit(SONG), Visit(Song(2, 30), leaves=4))
    assert stayed["song"] == SONG.name
    assert not on.talker.runner.songs


def test_a_song_taken_over_gives_the_rest_of_its_conditioning() -> None:
    on = stage()
    [whole] = outcomes(on, Visit(SONG))
    [again] = outcomes(on, Visit(SONG, resumed_at=7, sent=4))
    assert again["codes"] == whole["codes"]
    assert again["rows"] == whole["rows"][4:]


def test_songs_of_a_pool_differ() -> None:
    songs = pool(40, 30, 250)
    assert len({song.name for song in songs}) == 40
    assert len({song.frames for song in songs}) > 20
    assert {30 <= song.frames <= 250 for song in songs} == {True}


@pytest.fixture
def bench(tmp_path) -> Bench:
    return Bench(
        out=tmp_path, checkpoint=tiny_checkpoint(), family="minimax_music3", config="minimax_music3",
        platform="cpu", plan=DRY, runners=["torch"], about={"command": "x"},
        overrides={"talker": {"max_model_len": 512, "max_jobs": 2}},
        limit_s=120, deadline=time.monotonic() + 120,
    )  # fmt: skip


def test_a_child_that_falls_leaves_its_rows(bench) -> None:
    sung, unheard_of = Visit(Song(1, 2)), Visit(Song(2, 9), resumed_at=3)
    asked = sections._as_arguments([Scenario("alone first", (sung,)), Scenario("second", (unheard_of,))])
    with pytest.raises(NotRun, match="KeyError: '2-9-1'") as fell:
        bench.child("play", bench.tree("torch"), scenarios=asked)
    about, played = fell.value.rows
    assert about["profile"]["runner"] == "torch"
    assert [song["frames"] for song in played["songs"]] == [2]


def test_a_child_is_stopped_in_time(bench) -> None:
    bench.limit_s = 1.5
    with pytest.raises(NotRun, match="not done within"):
        bench.child("play", bench.tree("torch"), scenarios=[])
    bench.deadline = time.monotonic()
    with pytest.raises(NotRun, match="out of time"):
        bench.child("play", bench.tree("torch"), scenarios=[])


def test_results_are_on_disk_as_they_come(bench) -> None:
    bench.put("steps", [{"songs": 4, "step_ms": 7.25, "top": [1, 2], "fast": True}], ["a note"])
    assert json.loads((bench.out / "steps.json").read_text())["rows"][0]["top"] == [1, 2]
    page = (bench.out / "table.md").read_text()
    assert "| songs | step_ms | fast |" in page
    assert "| 4 | 7.25 | yes |" in page
    assert "- a note" in page


def test_a_table_has_all_columns_and_escapes_bars() -> None:
    assert table([{"a": 1}, {"b": "x|y"}]).splitlines()[2:] == ["| 1 |  |", "|  | x\\|y |"]


def test_overrides_lie_over_one_another() -> None:
    assert merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}) == {"a": {"b": 3, "c": 2}}


def launch(correlation: int) -> dict:
    return {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "args": {"correlation": correlation}}


def kernel(name: str, at: float, took: float, correlation: int) -> dict:
    args = {"correlation": correlation}
    return {"ph": "X", "cat": "kernel", "name": name, "ts": at, "dur": took, "args": args}


def test_a_steps_kernels_are_counted_by_the_graph_that_launched_them() -> None:
    events = [
        launch(1), launch(2),
        kernel("reshape_and_cache_flash", 0, 1000, 1), kernel("nvjet_gemm", 500, 2500, 1),
        kernel("nvjet_gemm", 3000, 1000, 2), kernel("topk", 4000, 500, 2),
        kernel("copy", 4500, 250, 9), kernel("copy", 4600, 150, 10),
    ]  # fmt: skip
    found = by_launch(events, steps=1)
    assert found["busy_ms"] == 4.75
    assert found["backbone_ms"] == 3
    assert found["draw_ms"] == 1.5
    assert found["draw_products_ms"] == 1
    assert found["other_ms"] == 0.25
    assert found["launches"] == 2
    assert found["top"][0] == {"kernel": "nvjet_gemm", "ms": 3.5}


def test_every_section_has_a_time_and_a_title(tmp_path: Path) -> None:
    from tests.bench.gpu.plans import EXPECTED_S
    from tests.bench.gpu.report import _TITLES

    assert set(sections.SECTIONS) == set(EXPECTED_S) == {*_TITLES, "exact"}  # which makes others' tables
