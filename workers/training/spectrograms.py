"""A picture of what was said: `python -m workers.training.spectrograms OUT.png LEFT.wav RIGHT.wav [LEFT RIGHT]…`

A row for each pair, its two log-mel spectrograms side by side: the teacher's and the voice's, say. Time runs to the
right, a pixel for each 10 ms; frequency upwards.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

from workers.training.judge import read_wav
from workers.training.spectra import LogMel

_MELS = 128
_QUIET, _LOUD = math.log(1e-3), math.log(30.0)  # of a band's magnitude
_COLOURS = np.array([(10, 8, 30), (70, 20, 110), (180, 50, 90), (250, 140, 40), (250, 250, 190)], float)
_MARGIN = 12
_CAPTION = 16


def spectrogram(pcm: np.ndarray) -> Image.Image:
    """Of (samples,) int16 at 24 kHz."""
    mel = LogMel(fft=1024, hop=240, mels=_MELS)(torch.from_numpy(pcm.astype(np.float32) / 32768)[None])[0].numpy()
    level = (np.clip(mel, _QUIET, _LOUD) - _QUIET) / (_LOUD - _QUIET) * (len(_COLOURS) - 1)
    lower = np.minimum(level.astype(int), len(_COLOURS) - 2)
    share = (level - lower)[..., None]
    pixels = (1 - share) * _COLOURS[lower] + share * _COLOURS[lower + 1]
    return Image.fromarray(pixels[::-1].astype(np.uint8))


def side_by_side(rows: list[tuple[Path, Path]]) -> Image.Image:
    """Each pair of files in a row, under its names."""
    drawn = [tuple((path.stem, spectrogram(read_wav(path))) for path in row) for row in rows]
    left, right = (max(row[side][1].width for row in drawn) for side in (0, 1))
    height = _CAPTION + _MELS + _MARGIN
    sheet = Image.new("RGB", (left + right + 3 * _MARGIN, height * len(drawn) + _MARGIN), "white")
    draw = ImageDraw.Draw(sheet)
    for number, row in enumerate(drawn):
        for (name, picture), x in zip(row, (_MARGIN, left + 2 * _MARGIN), strict=True):
            draw.text((x, height * number + _MARGIN // 2), name, fill="black")
            sheet.paste(picture, (x, height * number + _CAPTION + _MARGIN // 2))
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("files", type=Path, nargs="+", help="WAV files, two and two")
    args = parser.parse_args()
    if len(args.files) % 2:
        parser.error("the files come in pairs")
    side_by_side(list(zip(args.files[::2], args.files[1::2], strict=True))).save(args.out)


if __name__ == "__main__":
    main()
