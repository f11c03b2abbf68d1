from pathlib import Path

import pytest

from workers.settings import BadSettings, load

HERE = Path("checkpoint")


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_the_shipped_file():
    settings = load("minimax_music3", HERE)
    assert (settings.model, settings.talker.model_runner, settings.checkpoint) == ("minimax_music3", "torch", HERE)


def test_an_overlay_changes_single_values(tmp_path):
    mine = write(tmp_path, "mine.yaml", "base_config: minimax_music3\ntalker: {max_jobs: 3}\nmodel: songs\n")
    settings = load(mine, HERE, overrides={"acoustic": {"threads": 2}})
    base = load("minimax_music3", HERE)
    assert (settings.talker.max_jobs, settings.acoustic.threads, settings.model) == (3, 2, "songs")
    assert (settings.talker.prefill_chunk, settings.acoustic.options) == (
        base.talker.prefill_chunk,
        base.acoustic.options,
    )


def test_a_platform_has_its_own_values(tmp_path):
    mine = write(tmp_path, "mine.yaml", "base_config: minimax_music3\nplatforms: {cuda: {talker: {max_jobs: 5}}}\n")
    assert load(mine, HERE, platform="cuda").talker.max_jobs == 5
    assert load(mine, HERE, platform="cpu").talker.max_jobs == load("minimax_music3", HERE).talker.max_jobs


@pytest.mark.parametrize(
    "rows, budget, fits", [(16, 25_728, True), (16, 25_727, False), (8, 12_864, True), (8, 12_800, False)]
)
def test_a_budget_that_splits_a_window_is_refused_with_the_number_that_would_do(rows, budget, fits):
    overrides = {"acoustic": {"max_num_seqs": rows, "max_num_batched_tokens": budget}}
    if fits:
        load("minimax_music3", HERE, overrides=overrides)
        return
    with pytest.raises(BadSettings, match=f"set it to {rows * 1608} or more"):
        load("minimax_music3", HERE, overrides=overrides)


@pytest.mark.parametrize(
    "text, says",
    [
        ("base_config: minimax_music3\ntalker: {max_job: 3}", "unknown key talker.max_job: known are"),
        ("base_config: minimax_music3\nrunner: v2", "unknown key 'runner'"),
        ("base_config: minimax_music3\ntalker: {max_jobs: many}", "talker.max_jobs must be a number"),
        ("base_config: minimax_music3\ntalker: {max_jobs: 0}", "talker.max_jobs must be a number over 0"),
        ("base_config: minimax_music3\ntalker: {max_jobs: 1.5}", "whole number"),
        ("base_config: minimax_music3\nleases: {ttl_s: true}", "leases.ttl_s must be a number"),
        ("base_config: nothing", "no deploy file 'nothing'"),
        ("base_config: mine.yaml", "is its own base_config"),
        ("[1, 2]", "must be a map"),
        ("a: [", "is no YAML that can be read"),
        ("talker: {}", "family"),
        ("base_config: minimax_music3\ntalker: 5", "talker must be a map"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path, text, says):
    with pytest.raises(BadSettings, match=says):
        load(write(tmp_path, "mine.yaml", text), HERE)
