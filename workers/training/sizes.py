"""The voice's widths: about 20 million parameters, of which talker, predictor and decoder have their shares.

A step on a CPU takes as long as it has operations, more than as they are wide: so there are few layers.
"""

from __future__ import annotations

from typing import Any

from workers.models.qwen3_tts.code2wav_sizes import Code2WavSizes

CODEBOOKS = 8
CODES = 512  # of each codebook

TALKER = {
    "hidden_size": 384,
    "intermediate_size": 640,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "head_dim": 64,
    "text_hidden_size": 384,
    "mrope_section": [12, 10, 10],
}
PREDICTOR = {
    "hidden_size": 192,
    "intermediate_size": 640,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 64,
}
DECODER = {
    "codebook_dim": 128,
    "decoder_dim": 384,
    "head_dim": 64,
    "hidden_size": 256,
    "intermediate_size": 512,
    "latent_dim": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "sliding_window": 24,
}


def decoder_sizes() -> Code2WavSizes:
    """As the exported config states them."""
    counts: dict[str, Any] = {"num_quantizers": CODEBOOKS, "codebook_size": CODES}
    return Code2WavSizes.from_config({**DECODER, **counts})
