"""`songline talker` on vLLM says what it cannot serve, and what would do, before it takes a song."""

from __future__ import annotations

import json
import shutil

import pytest
import yaml
from safetensors.torch import load_file, save_file

from compose.cli import main
from tests.compose.conftest import run as command
from tests.tiny_checkpoint import tiny_checkpoint
from workers import run

pytestmark = pytest.mark.redis
needs_vllm = pytest.mark.vllm

SMALL = {"model_runner": "v1", "max_jobs": 4, "max_model_len": 512}
BACKBONE = "language_model"


@pytest.fixture
def talker(real_broker, redis_server, tmp_path, capsys):
    """(exit code, what is told) of a talker that does not come to serve; what is raised out of it is a traceback."""

    def end(checkpoint=None, **changes) -> tuple[int, str]:
        config = tmp_path / "deploy.yaml"
        config.write_text(yaml.safe_dump({"base_config": "minimax_music3", "talker": SMALL | changes}))
        folder = checkpoint or tiny_checkpoint()
        code = main(["talker", "--config", str(config), "--checkpoint", str(folder), "--broker", redis_server.url])
        told = capsys.readouterr().err
        assert not real_broker.client().keys()
        return code, told[told.index("songline: ") :]

    return end


@pytest.fixture
def checkpoint(tmp_path):
    """A copy that may be broken."""
    return shutil.copytree(tiny_checkpoint(), tmp_path / "checkpoint")


def test_vllm_is_not_installed(talker, monkeypatch):
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    code, told = talker()
    assert code == 2
    assert "needs vLLM, which is not installed: pip install 'songline[vllm]'" in told and "to torch" in told


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"model_runner": "v3"}, "'v3' is not known: use one of torch, v1, v2", id="unknown runner"),
        pytest.param({"model_runner": "v2"}, "set model_runner to v1", id="v2 on the CPU"),
        pytest.param({"max_num_batched_tokens": 16}, "set it to 128 or more", id="step budget"),
        pytest.param({"max_jobs": 90, "max_num_batched_tokens": 179}, "set it to 180 or more", id="budget of rows"),
    ],
)
def test_settings_that_contradict_themselves(talker, changes, expected):
    code, told = talker(**changes)
    assert code == 2
    assert expected in told


@needs_vllm
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"options": {"device": "cuda"}}, "torch finds no GPU: set it to cpu", id="no GPU"),
        pytest.param({"kv_cache_gib": 0.0001}, "rows needs 0.00101: set it to that or more", id="cache in GiB"),
        pytest.param({"num_gpu_blocks": 20}, "needs 32: give the talker more memory", id="cache in blocks"),
        pytest.param({"options": {"dtype": "float99"}}, "dtype: Input should be 'auto'", id="dtype"),
        pytest.param({"options": {"whale": 1}}, "unknown talker option 'whale'; there are: device", id="option"),
        pytest.param({"compilation": {"whale": 1}}, "vLLM cannot serve this: whale: Unexpected", id="compilation"),
    ],
)
def test_settings_that_the_engine_cannot_serve(talker, device, changes, expected):
    if device != "cpu" and "device" in changes.get("options", {}):
        pytest.skip("there is a GPU")
    code, told = talker(**changes)
    assert code == 2
    assert expected in told


@needs_vllm
def test_a_process_ends_with_a_sentence(real_broker, redis_server, tmp_path):
    config = tmp_path / "deploy.yaml"
    config.write_text(yaml.safe_dump({"base_config": "minimax_music3", "talker": SMALL | {"num_gpu_blocks": 20}}))
    flags = ["--config", config, "--checkpoint", tiny_checkpoint(), "--broker", redis_server.url]
    code, _, told = command("talker", *flags)
    assert code == 2
    assert "set max_model_len to at most 288" in told and "Traceback" not in told


def change_config(checkpoint, **changes) -> None:
    file = checkpoint / BACKBONE / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def change_weights(checkpoint, change) -> None:
    file = checkpoint / BACKBONE / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file)


def cut_short(checkpoint) -> None:
    file = checkpoint / BACKBONE / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


@needs_vllm
@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        pytest.param(lambda c: shutil.rmtree(c / BACKBONE), "the checkpoint has no language_model", id="no backbone"),
        pytest.param(lambda c: (c / BACKBONE / "config.json").unlink(), "config.json is missing", id="no config"),
        pytest.param(cut_short, "model.safetensors is cut short or broken", id="cut short"),
        pytest.param(
            lambda c: change_weights(c, lambda weights: weights.pop("model.layers.0.mlp.up_proj.weight")),
            "missing: model.layers.0.mlp.up_proj.weight",
            id="a weight too few",
        ),
        pytest.param(
            lambda c: change_weights(c, lambda weights: weights.update(whale=weights["model.norm.weight"].clone())),
            "unexpected: whale",
            id="a weight too many",
        ),
        pytest.param(
            lambda c: change_config(c, intermediate_size=96),
            "up_proj.weight is (192, 64), the config asks for (96, 64)",
            id="another size",
        ),
        pytest.param(lambda c: change_config(c, model_type="whale"), "model_type 'whale'", id="another model"),
        pytest.param(
            lambda c: change_config(c, rope_scaling={"rope_type": "yarn"}), "rope type 'yarn'", id="other positions"
        ),
        pytest.param(
            lambda c: shutil.rmtree(c / "rvq_depth_decoder"), "the checkpoint has no rvq_depth_decoder", id="no depth"
        ),
    ],
)
def test_a_checkpoint_that_the_engine_cannot_serve(talker, checkpoint, spoil, expected):
    spoil(checkpoint)
    code, told = talker(checkpoint)
    assert code == 4
    assert expected in told
