"""Train the voice from nothing: `python -m workers.training SOURCES OUT`.

Texts, speech, codec, codes, talker, checkpoint, each from what the step before it left in OUT; a step whose result is
there is not run again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


class Run:
    """The steps of one training run.

    Args:
        sources: the folder that the texts' sources were fetched into.
        out: the folder for all results.
        minutes: of training, codec and talker.
        hours: of speech.
    """

    def __init__(self, sources: Path, out: Path, minutes: tuple[float, float], hours: float) -> None:
        self._sources, self._out = sources, out
        self._codec_minutes, self._talker_minutes = minutes
        self._hours = hours

    def steps(self) -> list[tuple[str, Callable[[Path], list[str]]]]:
        """The result of each step, and the command that makes it: a module of this package and its arguments."""
        out = self._out
        speech, codec, codes, talker = (str(out / name) for name in ("speech", "codec", "codes", "talker"))
        lines, held_out = str(out / "texts" / "train.tsv"), str(out / "texts" / "test.tsv")
        return [
            ("texts", lambda result: ["texts", "--sources", str(self._sources), "--out", f"{result}/train.tsv",
                                      "--processes", str(os.cpu_count())]),
            ("spoken", lambda result: ["teacher", held_out, str(result)]),
            ("speech", lambda result: ["teacher", lines, str(result), "--hours", str(self._hours)]),
            ("codec", lambda result: ["train_codec", speech, str(result), "--minutes", str(self._codec_minutes)]),
            (
                "heard",
                lambda result: ["judge", "codec", str(out / "spoken"), codec, held_out, "--out", str(result),
                                "--at-most", str(_CODEC_ERRORS)],
            ),
            ("codes", lambda result: ["code_speech", speech, codec, str(result)]),
            ("talker", lambda result: ["train_talker", codes, str(result), "--minutes", str(self._talker_minutes)]),
            ("voice", lambda result: ["export", codec, talker, str(result)]),
        ]  # fmt: skip

    def run(self) -> None:
        """Run what has no result yet. A result is given its name when it is whole."""
        for name, command in self.steps():
            result = self._out / name
            if result.exists():
                print(f"{result} is there", flush=True)
                continue
            begun, unfinished = time.monotonic(), self._out / f"{name}.unfinished"
            module, *arguments = command(unfinished)
            print(f"{result}: {module}", flush=True)
            subprocess.run([sys.executable, "-m", f"workers.training.{module}", *arguments], check=True)
            unfinished.rename(result)
            print(f"{result} after {time.monotonic() - begun:.0f} s", flush=True)


_CODEC_ERRORS = 0.025  # of the words: so many more are misheard of speech that was coded and decoded again


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workers.training", description=__doc__.splitlines()[0])
    parser.add_argument("sources", type=Path, help="the folder of the texts' sources: see workers.training.sources")
    parser.add_argument("out", type=Path)
    parser.add_argument("--codec-minutes", type=float, default=12)
    parser.add_argument("--talker-minutes", type=float, default=7)
    parser.add_argument("--hours", type=float, default=95, help="of speech")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    Run(args.sources, args.out, (args.codec_minutes, args.talker_minutes), args.hours).run()
    print(f"the voice is in {args.out / 'voice'}: songline up --model qwen3_tts --checkpoint {args.out / 'voice'}")


if __name__ == "__main__":
    main()
