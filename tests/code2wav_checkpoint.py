"""A speech tokenizer whose decoder has random weights and audible sound, in the published layout; no encoder.

Scales keep each stage's RMS near that of the one before: a weight's standard deviation is one over the square root of
what it sums over, branches of a residual are weaker than what they join, and the last convolution brings the sound to
an RMS of 0.1 to 0.3.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from workers.models.qwen3_tts.code2wav import Code2Wav
from workers.models.qwen3_tts.code2wav_sizes import Code2WavSizes

TINY: dict[str, Any] = {
    "codebook_dim": 32,
    "codebook_size": 64,
    "decoder_dim": 64,
    "head_dim": 16,
    "hidden_size": 48,
    "intermediate_size": 64,
    "latent_dim": 40,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "num_quantizers": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000,
    "sliding_window": 72,
    "upsample_rates": [8, 5, 4, 3],
    "upsampling_ratios": [2, 2],
}
_OUT_GAIN = 0.05


def write_speech_tokenizer(folder: Path, decoder_config: dict[str, Any] = TINY, seed: int = 0) -> Path:
    """Writes `speech_tokenizer/` in `folder`, which is returned."""
    component = folder / "speech_tokenizer"
    component.mkdir(parents=True, exist_ok=True)
    stated = {"model_type": "qwen3_tts_tokenizer_12hz", "decoder_config": decoder_config}
    (component / "config.json").write_text(json.dumps(stated), encoding="utf-8")
    save_file(decoder_weights(decoder_config, seed), component / "model.safetensors")
    return folder


def decoder_weights(decoder_config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """All `decoder.` tensors of a checkpoint, float32."""
    with torch.device("meta"):
        decoder = Code2Wav(Code2WavSizes.from_config(decoder_config))
    shapes = {name: tensor.shape for name, tensor in decoder.state_dict().items()}
    width = decoder_config["codebook_dim"]
    for part in ("rvq_first", "rvq_rest"):  # of the way from sound to codes
        shapes[f"quantizer.{part}.input_proj.weight"] = torch.Size((width // 2, width, 1))
    draws = torch.Generator().manual_seed(seed)
    last = f"decoder.{len(decoder_config['upsample_rates']) + 2}.conv.weight"
    weights = {}
    for name, shape in sorted(shapes.items()):
        weight = torch.randn(shape, generator=draws) * _std(name, shape) + _mean(name)
        weights[f"decoder.{name}"] = weight * _OUT_GAIN if name == last else weight
    for name in [name for name in weights if name.endswith("cluster_usage")]:
        weights[name] = weights[name].abs() * 50
        weights[name][0] = 0.0  # a code that training never used
        sums = name.replace("cluster_usage", "embedding_sum")
        weights[sums] = weights[sums] * weights[name].clamp(min=1e-5)[:, None]
    return weights


def _std(name: str, shape: torch.Size) -> float:
    if name.endswith(("alpha", "beta")):
        return 0.3
    if name.endswith("bias"):
        return 0.02
    if len(shape) == 1:
        return 0.1
    if name.endswith("embedding_sum"):
        return 0.7
    fan_in = shape[1] * (shape[2] if len(shape) == 3 else 1)
    if ".block.1." in name:  # a transposed convolution: two taps of as many channels as its first axis has
        fan_in = 2 * shape[0]
    elif name.startswith("upsample.") and name.endswith(".0.conv.weight"):
        fan_in = shape[0]
    branch = (
        0.3 if name.endswith((".conv2.conv.weight", "pwconv2.weight", "o_proj.weight", "down_proj.weight")) else 1.0
    )
    return branch * fan_in**-0.5


def _mean(name: str) -> float:
    return 1.0 if name.endswith(("norm.weight", "layernorm.weight", "scale", "gamma")) else 0.0
