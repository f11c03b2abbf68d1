"""Turn speech into codes: `python -m workers.training.code_speech SPEECH CODEC OUT`.

Codes are what a talker learns from, and a hundred hours of them fit where a few minutes of sound do.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from workers.models.qwen3_tts.config import FRAME_RATE
from workers.training.codec import Codec
from workers.training.corpus import Speech
from workers.training.discriminators import Discriminators
from workers.training.sizes import decoder_sizes
from workers.training.weights import load_weights

_AT_ONCE = 400  # seconds of sound on a GPU; utterances of about the same length go together


def load_codec(folder: Path, device: torch.device) -> Codec:
    """What `train_codec` wrote, ready to encode."""
    codec = Codec(decoder_sizes())
    load_weights(folder, "codec", {"codec": codec, "critics": Discriminators()})
    return codec.to(device).eval()


@torch.no_grad()
def code(speech: Speech, codec: Codec, device: torch.device) -> np.ndarray:
    """(all frames, codebooks) int16, in the order of the speech's frames.

    Each utterance is coded by itself: its codes do not hang on who stands beside it, but for what padding does.
    """
    codes = np.zeros((len(speech.frames), codec.sizes.codebooks), np.int16)
    by_length = sorted(speech.utterances, key=lambda utterance: utterance.frames)
    start = 0
    while start < len(by_length):
        longest = by_length[min(start + 255, len(by_length) - 1)].frames
        count = max(1, min(256, int(_AT_ONCE * FRAME_RATE / longest)))
        batch = by_length[start : start + count]
        start += count
        sound = torch.zeros(len(batch), batch[-1].frames * speech.frames.shape[1])
        for row, utterance in zip(sound, batch, strict=True):
            pcm = torch.from_numpy(speech.of(utterance).astype(np.float32) / 32768)
            row[: len(pcm)] = pcm
        coded = codec.encode(sound.to(device)).cpu().numpy()
        for row, utterance in zip(coded, batch, strict=True):
            codes[utterance.start : utterance.start + utterance.frames] = row[: utterance.frames]
    return codes


def write_codes(folder: Path, codes: np.ndarray, speech: Path) -> None:
    """The codes, and beside them what is known of each line."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"codes": codes}, folder / "codes.safetensors")
    if speech != folder:
        shutil.copy(speech / "lines.jsonl", folder / "lines.jsonl")


def read_codes(folder: Path) -> np.ndarray:
    """(all frames, codebooks) int16."""
    return load_file(folder / "codes.safetensors")["codes"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("speech", type=Path)
    parser.add_argument("codec", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    device = torch.device(args.device)
    speech = Speech(args.speech)
    codes = code(speech, load_codec(args.codec, device), device)
    write_codes(args.out, codes, args.speech)
    used = [len(np.unique(codes[:, book])) for book in range(codes.shape[1])]
    print(f"{len(codes)} frames; codes in use of each book: {used}")


if __name__ == "__main__":
    main()
