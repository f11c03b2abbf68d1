import re
from dataclasses import fields
from pathlib import Path

import pytest

from tests.tiny_checkpoint import tiny_checkpoint
from workers.models.family import load_family
from workers.settings import DEPLOY, PLATFORMS, BadSettings, TalkerSettings, load, step_tokens

HERE = tiny_checkpoint("qwen3_tts")  # whose config a budget is judged by; of MiniMax-Music3 nothing is read
ROOT = Path(__file__).parents[2]
SHIPPED = sorted(file.stem for file in DEPLOY.glob("*.yaml"))
PROMPTS_BESIDE_FRAMES = {"exclusive_prefill": False, "options": {"device": "cuda"}}


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


# --- the files that are shipped ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_file_serves_on_every_platform(name, platform):
    settings = load(name, HERE, platform=platform)
    assert settings.family == settings.model and name.startswith(settings.family)
    stages = (settings.talker, settings.acoustic)
    assert {stage.options.get("device", "cpu").split(":")[0] for stage in stages} == {platform}


@pytest.mark.parametrize(
    "name, on_cpu, on_cuda",
    [
        ("minimax_music3", "torch", "v2"),
        ("minimax_music3_v1", "v1", "v1"),
        ("minimax_music3_2gpu", "torch", "v2"),
        ("qwen3_tts", "torch", "v2"),
        ("qwen3_tts_high_concurrency", "torch", "v2"),
        ("qwen3_tts_2gpu", "torch", "v2"),
        ("qwen3_tts_small", "torch", "v2"),
    ],
)
def test_each_platform_has_its_runner(name, on_cpu, on_cuda):
    assert load(name, HERE).talker.model_runner == on_cpu
    assert load(name, HERE, platform="cuda").talker.model_runner == on_cuda


@pytest.mark.parametrize(("family", "jobs", "codes"), [("minimax_music3", 16, 1608), ("qwen3_tts", 64, 416)])
def test_one_card_is_shared_and_two_are_not(family, jobs, codes):
    one, two = (load(name, HERE, platform="cuda") for name in (family, f"{family}_2gpu"))
    assert one.talker.options["device"] == one.acoustic.options["device"] == "cuda"
    assert (two.talker.options["device"], two.acoustic.options["device"]) == ("cuda", "cuda:1")
    assert one.talker.gpu_memory_utilization < two.talker.gpu_memory_utilization < 1
    assert (two.acoustic.max_num_seqs, two.acoustic.max_num_batched_tokens) == (jobs, jobs * codes)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", SHIPPED)
def test_no_row_of_a_shipped_talker_stays_empty_for_the_acoustic_stage(name, platform):
    """A job counts against `ready_limit` from its first span to its end, so as long as it holds a row."""
    settings = load(name, HERE, platform=platform)
    assert settings.talker.max_jobs <= min(settings.talker.ready_limit, settings.acoustic.max_num_seqs)


def test_small_is_of_few_rows_and_only_on_a_cpu():
    usual, small = load("qwen3_tts", HERE), load("qwen3_tts_small", HERE)
    assert (small.talker.max_jobs, small.talker.model_runner) == (4, "torch") and usual.acoustic.hold_s is None
    assert load("qwen3_tts_small", HERE, platform="cuda") == load("qwen3_tts", HERE, platform="cuda")


def test_high_concurrency_is_of_more_rows():
    usual, high = (load(f"qwen3_tts{name}", HERE, platform="cuda") for name in ("", "_high_concurrency"))
    assert high.talker.max_jobs > usual.talker.max_jobs
    assert high.talker.options == usual.talker.options


def test_what_the_api_reads_is_the_same_on_every_platform():
    """So an api on a machine without a GPU counts as the workers on theirs do."""
    for name in SHIPPED:
        cpu, cuda = (load(name, HERE, platform=platform) for platform in PLATFORMS)
        assert (cpu.leases, cpu.talker.max_model_len) == (cuda.leases, cuda.talker.max_model_len)


def test_the_vllm_page_names_every_setting_of_the_talker_with_its_default():
    rows = re.findall(r"^\| `(talker\.\w+)` \| (?:`(.+?)`)? \|", (ROOT / "docs" / "vllm.md").read_text(), re.MULTILINE)
    told = dict(rows)
    defaults = TalkerSettings()
    shown = {f"talker.{field.name}": _shown(getattr(defaults, field.name)) for field in fields(TalkerSettings)}
    assert told == shown


def _shown(value: object) -> str:
    """As YAML has it."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- overlays and platforms -------------------------------------------------------------------------------------------


def test_an_overlay_changes_single_values(tmp_path):
    mine = write(tmp_path, "mine.yaml", "base_config: minimax_music3\ntalker: {max_jobs: 3}\nmodel: songs\n")
    settings = load(mine, HERE, overrides={"acoustic": {"threads": 2}})
    base = load("minimax_music3", HERE)
    assert (settings.talker.max_jobs, settings.acoustic.threads, settings.model) == (3, 2, "songs")
    assert (settings.talker.prefill_chunk, settings.acoustic.options) == (
        base.talker.prefill_chunk,
        base.acoustic.options,
    )


def test_an_overlay_of_an_overlay(tmp_path):
    write(tmp_path, "ours.yaml", "base_config: minimax_music3_2gpu\ntalker: {max_jobs: 3, prefill_chunk: 32}\n")
    mine = write(tmp_path, "mine.yaml", "base_config: ours.yaml\ntalker: {max_jobs: 2}\n")
    settings = load(mine, HERE, platform="cuda")
    assert (settings.talker.max_jobs, settings.talker.prefill_chunk) == (2, 32)
    assert settings.acoustic.options["device"] == "cuda:1"


def test_an_overlay_wins_over_the_platform_block_of_its_base(tmp_path):
    text = "base_config: minimax_music3\ntalker: {model_runner: v1, gpu_memory_utilization: 0.5}\n"
    on_cuda = load(write(tmp_path, "mine.yaml", text), HERE, platform="cuda").talker
    base = load("minimax_music3", HERE, platform="cuda").talker
    assert (on_cuda.model_runner, on_cuda.gpu_memory_utilization) == ("v1", 0.5)
    assert on_cuda.options == base.options


def test_a_platform_has_its_own_values(tmp_path):
    mine = write(tmp_path, "mine.yaml", "base_config: minimax_music3\nplatforms: {cuda: {talker: {max_jobs: 5}}}\n")
    assert load(mine, HERE, platform="cuda").talker.max_jobs == 5
    assert load(mine, HERE, platform="cpu").talker.max_jobs == load("minimax_music3", HERE).talker.max_jobs


@pytest.mark.parametrize(
    "text",
    [
        "talker: {model_runner: torch}\nplatforms: {cuda: {talker: {model_runner: v1}}}",
        "model_runner: torch\nplatforms: {cuda: {model_runner: v1}}",
        "model_runner: torch\nplatforms: {cuda: {model_runner: v1, talker: {max_jobs: 16}}}",
        "talker: {model_runner: torch}\nplatforms: {cuda: {model_runner: v1, talker: {model_runner: v1}}}",
    ],
)
def test_a_model_runner_outside_of_talker_is_the_talkers(tmp_path, text):
    mine = write(tmp_path, "mine.yaml", f"base_config: minimax_music3\n{text}\n")
    assert [load(mine, HERE, platform=platform).talker.model_runner for platform in PLATFORMS] == ["torch", "v1"]
    assert load(mine, HERE, overrides={"model_runner": "v1"}).talker.model_runner == "v1"


def test_an_unknown_platform_is_refused():
    with pytest.raises(BadSettings, match="no platform 'tpu': use one of cpu, cuda"):
        load("minimax_music3", HERE, platform="tpu")


# --- refusals ---------------------------------------------------------------------------------------------------------


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
    "talker, needed",
    [
        ({"max_jobs": 16, "prefill_chunk": 64}, 128),  # a chunk for each of a job's two rows
        ({"max_jobs": 16, "prefill_chunk": 8}, 32),  # a decode of all rows
        ({"max_jobs": 16, "prefill_chunk": 8, "exclusive_prefill": False}, 48),  # both at once
    ],
)
def test_a_step_too_small_for_a_pair_is_refused_with_the_number_that_would_do(talker, needed):
    fits = load("minimax_music3", HERE, overrides={"talker": {**talker, "max_num_batched_tokens": needed}})
    assert step_tokens(fits.talker, load_family(fits.family)) == needed
    with pytest.raises(BadSettings, match=f"a step needs {needed}.*set it to {needed} or more"):
        load("minimax_music3", HERE, overrides={"talker": {**talker, "max_num_batched_tokens": needed - 1}})


@pytest.mark.parametrize(
    "talker, says",
    [
        ({"model_runner": "v3"}, "'v3' is not known: use one of torch, v1, v2"),
        ({"replay": "guess"}, "'guess' is not known: use one of chunks, steps"),
        ({"model_runner": "v2"}, "v2 is for CUDA"),
        ({"model_runner": "v1", "options": {"device": "cuda:1"}}, "vLLM takes the first GPU that its process sees"),
        ({"model_runner": "v2", "options": {"device": "cuda", "dtype": "float32"}}, "16 bits only"),
        ({"model_runner": "v1", "gpu_memory_utilization": 1.5}, "is 1.5: it is a part of the card, at most 1"),
        ({"model_runner": "v1", **PROMPTS_BESIDE_FRAMES}, "set it to true, or talker.batch_invariant to true"),
        ({"model_runner": "v2", **PROMPTS_BESIDE_FRAMES}, "set it to true, or talker.batch_invariant to true"),
        (
            {"model_runner": "v2", "batch_invariant": True, "prefill_graphs": True, **PROMPTS_BESIDE_FRAMES},
            "prefill_graphs needs steps that prefill alone",
        ),
    ],
)
def test_a_runner_that_cannot_be_is_refused(talker, says):
    with pytest.raises(BadSettings, match=says):
        load("minimax_music3", HERE, overrides={"talker": talker})


@pytest.mark.parametrize(
    "talker",
    [
        {"model_runner": "v2", "batch_invariant": True},
        {"model_runner": "v1", "options": {"device": "cpu"}},
        {"model_runner": "torch"},  # which has no such steps
    ],
)
def test_prompts_may_be_computed_beside_frames_where_that_changes_no_bits(talker):
    load("qwen3_tts", HERE, overrides={"talker": PROMPTS_BESIDE_FRAMES | talker})


def test_what_vllm_alone_cannot_do_the_torch_runner_may():
    options = {"device": "cuda:1", "dtype": "float32"}
    overrides = {"talker": {"model_runner": "torch", "options": options}}
    assert load("minimax_music3", HERE, overrides=overrides, platform="cuda").talker.options == options


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
        ("base_config: minimax_music3\nmodel_runner: v1\ntalker: 5", "talker must be a map"),
        ("base_config: minimax_music3\nplatforms: [cuda]", "platforms must be a map of maps"),
        ("base_config: minimax_music3\nplatforms: {cuda: v2}", "platforms must be a map of maps"),
        ("base_config: minimax_music3\nplatforms: {gpu: {}}", "unknown platform platforms.gpu: known are cpu, cuda"),
        ("platforms: {cpu: {base_config: minimax_music3}}", "base_config cannot stand in platforms.cpu"),
        (
            "base_config: minimax_music3\nmodel_runner: torch\ntalker: {model_runner: v1}",
            "model_runner is 'torch' and talker.model_runner 'v1': give one",
        ),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path, text, says):
    with pytest.raises(BadSettings, match=says):
        load(write(tmp_path, "mine.yaml", text), HERE)
