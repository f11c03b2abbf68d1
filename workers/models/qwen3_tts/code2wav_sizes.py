"""What a checkpoint's decoder_config says of Code2Wav."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.models.qwen3_tts import config
from workers.models.qwen3_tts.config import ConfigError

# What the authors' configuration class takes where a file, which may state differences only, leaves a field out.
_DEFAULTS: dict[str, Any] = {
    "codebook_size": 2048,
    "hidden_size": 1024,
    "latent_dim": 1024,
    "rope_theta": 10_000,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "attention_bias": False,
    "sliding_window": 72,
    "intermediate_size": 3072,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "num_hidden_layers": 8,
    "num_quantizers": 16,
    "upsample_rates": (8, 5, 4, 3),
    "upsampling_ratios": (2, 2),
    "decoder_dim": 1536,
}


@dataclass(frozen=True, slots=True)
class Code2WavSizes:
    """Widths in channels, `sliding_window` in frames (a frame sees itself and window - 1 before it)."""

    codebooks: int
    codes: int
    codebook_width: int
    latent: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    sliding_window: int
    attention_bias: bool
    rope_theta: float
    rms_norm_eps: float
    latent_strides: tuple[int, ...]  # upsampling of the latents, then of the waveform's channels
    strides: tuple[int, ...]
    channels: int  # of the widest convolution; every stride halves them

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.latent_strides) * math.prod(self.strides)

    @classmethod
    def from_config(cls, stated: Mapping[str, Any]) -> Code2WavSizes:
        """Of `decoder_config`. Raises ConfigError, naming the field."""
        fields = {**_DEFAULTS, **stated}
        if "codebook_dim" not in fields:
            raise ConfigError("the speech tokenizer's decoder_config has no codebook_dim")
        for name, known in (("hidden_act", "silu"), ("rope_scaling", None)):
            if fields.get(name) != known:
                raise ConfigError(f"the decoder's {name} is {fields[name]!r}; only {known!r} is known")
        if fields["num_attention_heads"] % fields["num_key_value_heads"]:
            raise ConfigError("the decoder's num_attention_heads must be a multiple of its num_key_value_heads")
        if fields["num_quantizers"] < 2:
            raise ConfigError("the decoder's num_quantizers must be at least 2")
        return cls(
            codebooks=fields["num_quantizers"],
            codes=fields["codebook_size"],
            codebook_width=fields["codebook_dim"],
            latent=fields["latent_dim"],
            hidden=fields["hidden_size"],
            intermediate=fields["intermediate_size"],
            layers=fields["num_hidden_layers"],
            heads=fields["num_attention_heads"],
            kv_heads=fields["num_key_value_heads"],
            head_dim=fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"],
            sliding_window=fields["sliding_window"],
            attention_bias=fields["attention_bias"],
            rope_theta=float(fields["rope_theta"]),
            rms_norm_eps=fields["rms_norm_eps"],
            latent_strides=tuple(fields["upsampling_ratios"]),
            strides=tuple(fields["upsample_rates"]),
            channels=fields["decoder_dim"],
        )


def code2wav_sizes(folder: Path) -> Code2WavSizes:
    """What a checkpoint says of its decoder; raises ConfigError."""
    path = folder / config.SPEECH_TOKENIZER / "config.json"
    whole = config.speech_tokenizer_config(folder)
    stated = whole.get("decoder_config")
    if not isinstance(stated, dict):
        raise ConfigError(f"{path} has no section decoder_config")
    sizes = Code2WavSizes.from_config(stated)
    if sizes.samples_per_frame != config.FRAME_SAMPLES:
        raise ConfigError(f"the decoder makes {sizes.samples_per_frame} samples a frame, not {config.FRAME_SAMPLES}")
    encoded = whole.get("encoder_valid_num_quantizers", sizes.codebooks)
    if encoded != sizes.codebooks:
        raise ConfigError(
            f"{path}: encoder_valid_num_quantizers is {encoded!r}, and the decoder has {sizes.codebooks} codes a frame"
        )
    return sizes


def check_codes(folder: Path) -> None:
    """Raise ConfigError where a checkpoint's talker and decoder do not have the same codes."""
    talker, decoder = config.load_config(folder), code2wav_sizes(folder)
    if (talker.codebooks, talker.codes) != (decoder.codebooks, decoder.codes):
        raise ConfigError(
            f"{folder}: the talker draws {talker.codebooks} codes of {talker.codes} a frame, and its "
            f"{config.SPEECH_TOKENIZER} takes {decoder.codebooks} of {decoder.codes}"
        )
