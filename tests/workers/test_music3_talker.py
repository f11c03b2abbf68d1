"""Loading is strict: a checkpoint that does not fit is refused, by the name of what is wrong."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiny_checkpoint import tiny_checkpoint
from workers.checkpoints import CheckpointError
from workers.models.minimax_music3 import config
from workers.models.minimax_music3.talker import load_talker
from workers.runners.torch_qwen3 import UnsupportedConfig


@pytest.fixture
def copy(tmp_path):
    """A checkpoint whose files may be changed: folders are the copy's own, files are links until they are written."""
    folder = tmp_path / "checkpoint"
    for component in (*config.TALKER_COMPONENTS, config.TOKENIZER):
        (folder / component).mkdir(parents=True)
        for file in (tiny_checkpoint() / component).iterdir():
            (folder / component / file.name).symlink_to(file)
    return folder


def change_weights(folder, component, change) -> None:
    [file] = (folder / component).glob("*.safetensors")
    weights = load_file(file)
    change(weights)
    file.unlink()
    save_file(weights, file)


def change_config(folder, component, **changes) -> None:
    file = folder / component / "config.json"
    stated = json.loads(file.read_text()) | changes
    file.unlink()
    file.write_text(json.dumps(stated))


def test_a_whole_checkpoint_loads(copy):
    assert load_talker(copy, {}).context == config.CONTEXT


def test_bfloat16(copy):
    talker = load_talker(copy, {"dtype": "bfloat16"})
    assert talker.backbone.norm.weight.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("component", "change", "named"),
    [
        (config.LANGUAGE_MODEL, lambda w: w.pop("lm_head.weight"), "lm_head.weight"),
        (config.LANGUAGE_MODEL, lambda w: w.pop("model.layers.1.self_attn.k_norm.weight"), "missing: layers.1.self"),
        (config.LANGUAGE_MODEL, lambda w: w.update(extra=torch.zeros(1)), "unexpected: extra"),
        (config.LANGUAGE_MODEL, lambda w: w.update({"model.extra": torch.zeros(1)}), "unexpected: extra"),
        (config.LANGUAGE_MODEL, lambda w: w.update({"model.norm.weight": torch.ones(63)}), r"norm.weight is \(63,\)"),
        (config.DEPTH_DECODER, lambda w: w.pop("layers.0.attn.to_k.weight"), "missing: layers.0.attn.to_k.weight"),
        (config.CONDITION_ENCODER, lambda w: w.pop("layer_scale"), "layer_scale"),
        (config.CONDITION_ENCODER, lambda w: w.update(layer_weight_logits=torch.zeros(4)), "4 slices, not 8"),
    ],
)
def test_weights_that_do_not_fit(copy, component, change, named):
    change_weights(copy, component, change)
    with pytest.raises(CheckpointError, match=named):
        load_talker(copy, {})


@pytest.mark.parametrize(
    ("component", "change", "error", "named"),
    [
        (config.LANGUAGE_MODEL, {"vocab_size": 151_936}, config.ConfigError, "168059"),
        (config.LANGUAGE_MODEL, {"hidden_act": "gelu"}, UnsupportedConfig, "hidden_act"),
        (config.LANGUAGE_MODEL, {"use_sliding_window": True}, UnsupportedConfig, "use_sliding_window"),
        (config.LANGUAGE_MODEL, {"rope_scaling": {"rope_type": "yarn", "factor": 4}}, UnsupportedConfig, "yarn"),
        (config.DEPTH_DECODER, {"num_codebooks": 4}, config.ConfigError, "4 codebooks"),
        (config.DEPTH_DECODER, {"surprise": 1}, config.ConfigError, "surprise"),
    ],
)
def test_configs_that_do_not_fit(copy, component, change, error, named):
    change_config(copy, component, **change)
    with pytest.raises(error, match=named):
        load_talker(copy, {})


def test_a_missing_component_is_named(copy):
    shutil.rmtree(copy / config.DEPTH_DECODER)
    with pytest.raises(config.ConfigError, match=config.DEPTH_DECODER):
        load_talker(copy, {})


@pytest.mark.parametrize("settings", [{"dtype": "float16"}, {"surprise": 1}])
def test_settings_that_do_not_fit(copy, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        load_talker(copy, settings)


def test_an_older_and_a_newer_rotary_config_are_one(copy):
    stated = json.loads((copy / config.LANGUAGE_MODEL / "config.json").read_text())
    before = load_talker(copy, {}).backbone.config
    theta = stated.get("rope_theta") or stated["rope_parameters"]["rope_theta"]
    newer = {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": theta}}
    change_config(copy, config.LANGUAGE_MODEL, **newer)
    assert load_talker(copy, {}).backbone.config == before
