"""The authors' package, run in an environment of its own: `python qwen3_tts_reference.py SUBCOMMAND PATH ...`.

Each subcommand is a function here. It reads and writes files, and needs nothing of this project.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch


def decode_codes(checkpoint: Path, codes: Path, sound: Path) -> None:
    """Decode whole utterances in float32: .npz of (frames, 16) int64 arrays -> .npz of (samples,) float32, same names."""
    from qwen_tts.core.tokenizer_12hz.configuration_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2DecoderConfig
    from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Decoder
    from safetensors.torch import load_file

    stated = json.loads((checkpoint / "speech_tokenizer" / "config.json").read_text())
    decoder = Qwen3TTSTokenizerV2Decoder._from_config(Qwen3TTSTokenizerV2DecoderConfig(**stated["decoder_config"]))
    stored = load_file(checkpoint / "speech_tokenizer" / "model.safetensors")
    weights = {name.removeprefix("decoder."): stored[name] for name in stored if name.startswith("decoder.")}
    decoder.load_state_dict(weights, strict=True)
    decoder.eval()
    with torch.inference_mode(), np.load(codes) as utterances:
        np.savez(sound, **{name: decoder(torch.from_numpy(u.T)[None])[0, 0].numpy() for name, u in utterances.items()})


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]](*map(Path, sys.argv[2:]))
