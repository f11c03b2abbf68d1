"""The acoustic stage: codes -> 24 kHz sound, window by window, each frame decoded once.

The decoder runs at a few fixed lengths only, since its bits are those of the lengths that it is called with. How a
window is cut into such lengths depends on how many frames it has and on whether it is the last, so on the job alone.
A window of one of the lengths is one call. The last window is padded to one: the decoder looks back only, so the rest
is not heard. Any other is several calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from workers.models.qwen3_tts import config
from workers.models.qwen3_tts.code2wav import Code2Wav, load_code2wav
from workers.models.qwen3_tts.code2wav_layers import State

LENGTHS = (1, 2, 4, 8, 16, 25)  # frames of a call
_DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}
_OPTIONS = frozenset({"device", "dtype", "lengths"})


class Call(NamedTuple):
    """One call of the decoder: it has `length` frames, of which the first `frames` are wanted."""

    frames: int
    length: int


class SpeechAcoustic:
    """Qwen3-TTS's acoustic stage; implements `workers.models.family.AcousticModel`.

    Args:
        decoder: on one device.
        lengths: frames of a call of the decoder, 1 among them.
        tf32: whether convolutions and products may round their inputs to ten bits (CUDA).
    """

    sample_rate = config.SAMPLE_RATE
    channels = config.CHANNELS
    width = 0
    keeps_state = False

    def __init__(self, decoder: Code2Wav, *, lengths: tuple[int, ...] = LENGTHS, tf32: bool = False) -> None:
        if not lengths or min(lengths) != 1:
            raise ValueError(f"lengths must be whole numbers from 1, with 1 among them, got {lengths}")
        self._decoder = decoder
        self._lengths = tuple(sorted(set(lengths)))
        self._tf32 = tf32
        self._device = decoder.device
        # Its own, so that a talker's steps on the same card need not queue behind a window's.
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None

    @torch.inference_mode()
    def window(
        self,
        codes: np.ndarray,
        *,
        index: int,
        last: bool,
        seed: int,
        state: dict[str, Any],
        check: Callable[[], None],
        reference: np.ndarray | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Decode one window: see `AcousticModel.window`.

        Args:
            codes: (frames, codebooks) int16, of the window's own frames.
            seed: of no effect: nothing is drawn here.
            state: tensors on the device, which belong to whoever holds them, and to one utterance.
            check: called before each call of the decoder.
            reference: (frames, codebooks) int16, what the utterance goes on from, with window 0 only: it is heard by
                the decoder and by nobody else.

        Raises:
            ValueError: codes, reference or state are not those of this window.
            Dropped: from `check`.
        """
        self._validate(codes, index, state, reference)
        with self._on_stream(), self._arithmetic():
            if index == 0:
                state = self._decoder.init_state(1)
                if reference is not None:
                    state = self._primed(reference, state, check)
            sounds, state = self._decode(codes, self.calls(len(codes), last=last), state, check)
            pcm = _pcm(torch.cat(sounds)).cpu().numpy()
        return pcm[:, None], {} if last else state

    def calls(self, frames: int, *, last: bool) -> list[Call]:
        """The calls that decode so many frames: in full, but that the last call of the last window may be padded."""
        longest = self._lengths[-1]
        whole, rest = divmod(frames, longest)
        calls = [Call(longest, longest)] * whole
        if rest and last:
            return [*calls, Call(rest, next(length for length in self._lengths if length >= rest))]
        for length in reversed(self._lengths):
            count, rest = divmod(rest, length)
            calls += [Call(length, length)] * count
        return calls

    def _primed(self, reference: np.ndarray, state: State, check: Callable[[], None]) -> State:
        return self._decode(reference, self.calls(len(reference), last=False), state, check)[1]

    def _decode(
        self, codes: np.ndarray, calls: list[Call], state: State, check: Callable[[], None]
    ) -> tuple[list[Tensor], State]:
        """Sounds, (samples,) float32 each, and the state, which means nothing after a padded call."""
        sounds, start = [], 0
        for frames, length in calls:
            check()
            padded = np.zeros((1, length, codes.shape[1]), np.int64)
            padded[0, :frames] = codes[start : start + frames]
            sound, state = self._decoder.decode(torch.from_numpy(padded).to(self._device), state)
            sounds.append(sound[0, : frames * self._decoder.samples_per_frame])
            start += frames
        return sounds, state

    def _validate(self, codes: np.ndarray, index: int, state: dict[str, Any], reference: np.ndarray | None) -> None:
        self._validate_codes("codes", codes)
        if reference is not None:
            self._validate_codes("reference", reference)
            if index > 0:
                raise ValueError(f"a reference comes with window 0, not with window {index}")
        if (index > 0) != bool(state):
            needed = "its predecessor's" if index > 0 else "no"
            raise ValueError(f"window {index} needs {needed} state")

    def _validate_codes(self, name: str, codes: np.ndarray) -> None:
        books, limit = self._decoder.sizes.codebooks, self._decoder.sizes.codes
        if codes.dtype != np.int16 or codes.shape != (len(codes), books) or len(codes) == 0:
            raise ValueError(f"{name} must be (frames, {books}) int16, got {codes.shape} {codes.dtype}")
        if codes.min() < 0 or codes.max() >= limit:  # on CUDA, looking one up would take the whole process down
            raise ValueError(f"{name} must be from 0 to {limit - 1}, got {codes.min()} to {codes.max()}")

    def _on_stream(self) -> AbstractContextManager[None]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    @contextmanager
    def _arithmetic(self) -> Iterator[None]:
        """cuDNN as this stage needs it, whatever else the process does with it: never choosing kernels by timing."""
        if self._device.type != "cuda":
            yield
            return
        cudnn = torch.backends.cudnn
        before = cudnn.benchmark, cudnn.deterministic, cudnn.conv.fp32_precision
        cudnn.benchmark, cudnn.deterministic, cudnn.conv.fp32_precision = False, True, "tf32" if self._tf32 else "ieee"
        try:
            yield
        finally:
            cudnn.benchmark, cudnn.deterministic, cudnn.conv.fp32_precision = before


def _pcm(sound: Tensor) -> Tensor:
    """float32 in [-1, 1] -> int16."""
    return (sound * 32_767.0).round().to(torch.int16)


def load_acoustic(folder: Path, settings: dict[str, Any]) -> SpeechAcoustic:
    """The acoustic stage of a checkpoint.

    Args:
        folder: the checkpoint.
        settings: the defaults in brackets: `device` ("cpu"); `dtype` ("float32", or "bfloat16", or on CUDA "tf32");
            `lengths` ([1, 2, 4, 8, 16, 25]), the frames of a call of the decoder; a ramp best keeps to them.

    Raises:
        CheckpointError: the checkpoint is not whole, or is not one of this family.
        ValueError: a setting is not one of these.
    """
    if unknown := settings.keys() - _OPTIONS:
        raise ValueError(f"unknown acoustic settings: {', '.join(sorted(unknown))}")
    device = torch.device(settings.get("device", "cpu"))
    dtype = settings.get("dtype", "float32")
    if dtype not in _DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}")
    if dtype == "tf32" and device.type != "cuda":
        raise ValueError(f"dtype: tf32 is for CUDA, and the device is {device.type}")
    lengths = settings.get("lengths", LENGTHS)
    if not isinstance(lengths, list | tuple) or not all(type(length) is int for length in lengths):
        raise ValueError(f"lengths must be a list of whole numbers, got {lengths!r}")
    return SpeechAcoustic(load_code2wav(folder, device, _DTYPES[dtype]), lengths=tuple(lengths), tf32=dtype == "tf32")
