"""The constants of MiniMax-Music3's contract, and the sizes that a checkpoint states.

What the checkpoint was trained with is no setting: changing one of these changes every song. Imports neither torch nor
anything heavier, since the api reads it too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from workers.checkpoints import CheckpointError
from workers.talker.windows import WindowPlan

MODEL = "minimax_music3"

# Frames.
FRAME_RATE = 25  # a second
PLAN = WindowPlan(window=200, hop=100)
LEAD = 1  # draw 0 only leads past <|audio_start|>: it is fed back, and is no frame
MAX_FRAMES = 9_000
MAX_PROMPT_TOKENS = 5_000
CONTEXT = 10_240  # positions that the backbone was trained with
MAX_CAPTION_CHARS = 20_000
MAX_LYRICS_CHARS = 50_000  # ten a token; a tokenizer holds up the whole api for as long as it works

# Codes: c0 lives in the backbone's vocabulary, c1..c7 in books of the depth decoder's own.
CODEBOOKS = 8
SEMANTIC_CODES = 16_384
RESIDUAL_CODES = 1_024

# Token ids. The text vocabulary lies below, the codes of c0 right above.
SPECIAL_TOKENS = {
    "<|im_start|>": 151_644,
    "<|im_end|>": 151_645,
    "<|audio_cfg|>": 151_654,
    "<|audio_start|>": 151_669,
    "<|audio_end|>": 151_670,
    "<|caption_start|>": 151_671,
    "<|caption_end|>": 151_672,
    "<|lyrics_start|>": 151_673,
    "<|lyrics_end|>": 151_674,
}
AUDIO_CFG = SPECIAL_TOKENS["<|audio_cfg|>"]
AUDIO_END = SPECIAL_TOKENS["<|audio_end|>"]
CODE_OFFSET = 151_675
MIN_VOCABULARY = CODE_OFFSET + SEMANTIC_CODES

# The draw.
ROWS = 2  # conditional, unconditional
GUIDANCE = 1.5
TOP_K = 50

# The acoustic stage.
SOLVER_STEPS = 30
SOLVER_GUIDANCE = 1.7
OVERLAP_LATENTS = 172  # pinned to the previous window's
CROP_LEFT_LATENTS = 86  # off every window but the first
CROP_RIGHT_LATENTS = 258  # off every window but the last
LATENT_SAMPLES = 512  # samples of the vocoder's waveform a latent
VOCODER_RATE = 44_100  # Hz
SAMPLE_RATE = 32_000  # Hz, of the audio stream
CHANNELS = 2

LANGUAGE_MODEL = "language_model"
TOKENIZER = "tokenizer"
DEPTH_DECODER = "rvq_depth_decoder"
CONDITION_ENCODER: Final = "condition_encoder"
TRANSFORMER: Final = "transformer"
VOCODER: Final = "vocoder"
SCHEDULER = "scheduler"
TALKER_COMPONENTS = (LANGUAGE_MODEL, DEPTH_DECODER, CONDITION_ENCODER)
ACOUSTIC_COMPONENTS = (CONDITION_ENCODER, TRANSFORMER, VOCODER)


class ConfigError(CheckpointError):
    """The checkpoint's configuration is not one of this family. `str()` names the file and the field."""


def component_config(folder: Path, component: str) -> dict[str, Any]:
    """The component's config.json; raises ConfigError where there is none."""
    path = folder / component / ("scheduler_config.json" if component == SCHEDULER else "config.json")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing: the checkpoint has no {component}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error


def context(folder: Path) -> int:
    """Positions that a song may use: what the backbone was trained with, or less where the checkpoint has less."""
    stated = component_config(folder, LANGUAGE_MODEL).get("max_position_embeddings", CONTEXT)
    return min(CONTEXT, stated)


def latent_length(frames: int) -> int:
    """Latents that the condition encoder makes of `frames` frames: 689 of 200.

    In floating point, in the authors' order: 24 kHz and a hop of 960 in, 44.1 kHz and a hop of 512 out.
    """
    return max(1, int(frames * 44_100 / 24_000 * 960 / 512))
