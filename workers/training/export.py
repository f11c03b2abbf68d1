"""Write the checkpoint: `python -m workers.training.export CODEC TALKER OUT`."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from workers.training.code_speech import load_codec
from workers.training.voice import export, new_talker
from workers.training.weights import load_weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("codec", type=Path)
    parser.add_argument("talker", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    talker = new_talker()
    load_weights(args.talker, "talker", {"talker": talker})
    export(args.out, load_codec(args.codec, torch.device("cpu")), talker)
    size = sum(path.stat().st_size for path in args.out.rglob("*.safetensors"))
    print(f"{size / 1e6:.1f} MB of weights in {args.out}")


if __name__ == "__main__":
    main()
