"""The acoustic stage: codes -> 24 kHz sound, window by window, each frame decoded once.

The decoder runs at a few fixed shapes only, (batch, length), since its bits are those of the shapes that it is called
with; at one shape, a row's bits are its own. How a window is cut into calls of such lengths depends on how many frames
it has and on whether it is the last, so on the job alone. A window of one of the lengths is one call. The last window
is padded to one: the decoder looks back only, so the rest is not heard. Any other is several calls, or where that is
asked for padded too: then windows of many lengths share calls of few.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from workers.models.cuda_graph import Graphed
from workers.models.family import Decoded, Dropped, Window
from workers.models.options import switch
from workers.models.qwen3_tts import config
from workers.models.qwen3_tts.code2wav import Code2Wav, load_code2wav
from workers.models.qwen3_tts.code2wav_state import Packed, StateLayout

LENGTHS = (1, 2, 4, 8, 16, 25)  # frames of a call
_DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}
_OPTIONS = frozenset({"device", "dtype", "lengths", "padded", "batch", "cuda_graph", "compile"})


class Call(NamedTuple):
    """One call of the decoder: it has `length` frames, of which the first `frames` are wanted."""

    frames: int
    length: int


@dataclass(eq=False, slots=True)
class _Decoding:
    """A window on its way through the decoder.

    state: (numbers,) for each dtype. calls: those to come, with their codes, and whether they are to be heard. sounds:
    (samples,) int16 each.
    """

    window: Window
    state: Packed
    calls: deque[tuple[Call, np.ndarray, bool]] = field(default_factory=deque)
    sounds: list[Tensor] = field(default_factory=list)
    dropped: bool = False


class SpeechAcoustic:
    """Qwen3-TTS's acoustic stage; implements `workers.models.family.AcousticModel`.

    Args:
        decoder: on one device.
        lengths: frames of a call of the decoder, 1 among them if windows are not padded.
        padded: whether any window is padded to one of the lengths, and not the last alone.
        batch: rows of a call, so the most windows that one decodes. Bytes depend on it.
        tf32: whether products may round their inputs to ten bits (CUDA).
        cuda_graph: whether each length's call is a CUDA graph.
    """

    sample_rate = config.SAMPLE_RATE
    channels = config.CHANNELS
    width = 0
    keeps_state = False

    def __init__(
        self,
        decoder: Code2Wav,
        *,
        lengths: tuple[int, ...] = LENGTHS,
        padded: bool = False,
        batch: int = 1,
        tf32: bool = False,
        cuda_graph: bool = False,
    ) -> None:
        if not lengths or min(lengths) < 1 or (min(lengths) > 1 and not padded):
            among = "" if padded else ", with 1 among them"
            raise ValueError(f"lengths must be whole numbers from 1{among}, got {lengths}")
        if batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}")
        self.batch = batch
        self._decoder = decoder
        self._lengths = tuple(sorted(set(lengths)))
        self._padded = padded
        self._tf32 = tf32
        self._device = decoder.device
        # Its own, so that a talker's steps on the same card need not queue behind a window's.
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        state = decoder.init_state(1)
        self._layout = StateLayout(state)
        self._fresh = tuple(rows[0] for rows in self._layout.pack(state))
        if self._stream is not None:  # all that was loaded is there before the stream's first call
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        self._steps: dict[int, Callable[..., tuple[Tensor, ...]]] = dict.fromkeys(self._lengths, self._step)
        if cuda_graph:
            pool = torch.cuda.graph_pool_handle()
            self._steps = {length: Graphed(self._step, pool) for length in self._lengths}

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
        """Decode one window: see `workers.models.family.Window`.

        Args:
            codes: (frames, codebooks) int16, of the window's own frames.
            seed: of no effect: nothing is drawn here.
            state: tensors on the device, by dtype.
            check: called before each call of the decoder.
            reference: (frames, codebooks) int16, what the utterance goes on from, with window 0 only: it is heard by
                the decoder and by nobody else.

        Raises:
            ValueError: codes, reference or state are not those of this window.
            Dropped: from `check`.
        """
        [decoded] = self.windows([Window(codes, index, last, seed, state, check, reference)])
        if decoded is None:
            raise Dropped
        return decoded

    @torch.inference_mode()
    def windows(self, asked: Sequence[Window]) -> list[Decoded | None]:
        """Decode windows of different jobs, of any lengths; each has the bytes that it would have alone.

        Returns:
            For each what `window` returns, or None where its `check` raised Dropped: that harms no other.

        Raises:
            ValueError: a window's codes, reference or state are not its own. None is decoded.
        """
        for window in asked:
            self._validate(window)
        decodings = [self._begun(window) for window in asked]
        with self._on_stream(), self._arithmetic():
            while waiting := [decoding for decoding in decodings if decoding.calls and not decoding.dropped]:
                for decoding in waiting:
                    decoding.dropped = _is_dropped(decoding.window)
                self._call([decoding for decoding in waiting if not decoding.dropped])
            return self._decoded(decodings)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Set up, and capture, the call of each length, so that no job waits for it; see what it does with rows.

        Raises:
            ValueError: where a call has several rows, a row's bytes hang on its place among them.
        """
        with self._on_stream(), self._arithmetic():
            for length in self._lengths:
                self._check_rows(length)

    def _check_rows(self, length: int) -> None:
        """One stream in every place of two calls, the second from where the first came to."""
        sizes = self._decoder.sizes
        codes = np.random.default_rng(length).integers(0, sizes.codes, (2, 1, length, sizes.codebooks))
        packed = [torch.stack([rows] * self.batch) for rows in self._fresh]
        for call in torch.from_numpy(codes).to(self._device).expand(2, self.batch, -1, -1):
            sound, *packed = self._steps[length](call, *self._having([length] * self.batch), *packed)
            if not all(torch.equal(rows, rows[:1].expand_as(rows)) for rows in (sound, *packed)):
                raise ValueError(
                    f"batch {self.batch}: on this device, a call of {length} frames gives equal rows different bytes;"
                    " take another batch, or 1"
                )

    def calls(self, frames: int, *, last: bool) -> list[Call]:
        """The calls that decode so many frames: in full, but that the last call of a padded window may have fewer."""
        longest = self._lengths[-1]
        whole, rest = divmod(frames, longest)
        calls = [Call(longest, longest)] * whole
        if rest and (last or self._padded):
            return [*calls, Call(rest, next(length for length in self._lengths if length >= rest))]
        for length in reversed(self._lengths):
            count, rest = divmod(rest, length)
            calls += [Call(length, length)] * count
        return calls

    def shape(self, frames: int, *, last: bool) -> tuple[int, ...]:
        """The lengths of the calls that decode so many frames."""
        return tuple(call.length for call in self.calls(frames, last=last))

    def _begun(self, window: Window) -> _Decoding:
        first = window.index == 0
        state = self._fresh if first else tuple(window.state[_name(dtype)] for dtype in self._layout.dtypes)
        decoding = _Decoding(window, state)
        if window.reference is not None:
            self._plan(decoding, window.reference, last=False, heard=False)
        self._plan(decoding, window.frames, last=window.last, heard=True)
        return decoding

    def _plan(self, decoding: _Decoding, codes: np.ndarray, *, last: bool, heard: bool) -> None:
        start = 0
        for call in self.calls(len(codes), last=last):
            decoding.calls.append((call, codes[start : start + call.frames], heard))
            start += call.frames

    def _call(self, waiting: list[_Decoding]) -> None:
        """One call of the decoder, for as many as can share the first one's."""
        if not waiting:
            return
        length = waiting[0].calls[0][0].length
        sharing = [decoding for decoding in waiting if decoding.calls[0][0].length == length][: self.batch]
        codes = np.zeros((self.batch, length, self._decoder.sizes.codebooks), np.int64)
        for row, decoding in enumerate(sharing):
            codes[row, : decoding.calls[0][0].frames] = decoding.calls[0][1]
        states = [decoding.state for decoding in sharing] + [self._fresh] * (self.batch - len(sharing))
        packed = tuple(torch.stack(rows) for rows in zip(*states, strict=True))
        having = self._having([decoding.calls[0][0].frames for decoding in sharing])
        sound, *after = self._steps[length](torch.from_numpy(codes).to(self._device), *having, *packed)
        for row, decoding in enumerate(sharing):
            call, _, heard = decoding.calls.popleft()
            decoding.state = tuple(rows[row].clone() for rows in after)
            if heard:
                decoding.sounds.append(sound[row, : call.frames * self._decoder.samples_per_frame])

    def _having(self, frames: list[int]) -> list[Tensor]:
        """(batch,) int64, of how many frames each row's state is to be; nothing where windows are not padded."""
        if not self._padded:
            return []
        return [torch.tensor(frames + [1] * (self.batch - len(frames)), device=self._device)]

    def _step(self, codes: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        """Codes (batch, length, codebooks) int64, frames that rows have, states -> (batch, samples) int16, the states.

        All that a call computes: tensors of fixed shapes in and out, and no wait for the device.
        """
        frames, packed = (given[0], given[1:]) if self._padded else (None, given)
        sound, state = self._decoder.decode(codes, self._layout.unpack(packed), frames)
        return (sound * 32_767.0).round().to(torch.int16), *self._layout.pack(state)

    def _decoded(self, decodings: list[_Decoding]) -> list[Decoded | None]:
        """What is heard of each; one copy brings all of it to the host."""
        heard = [decoding for decoding in decodings if not decoding.dropped]
        if not heard:
            return [None] * len(decodings)
        sound = torch.cat([piece for decoding in heard for piece in decoding.sounds])[:, None].cpu().numpy()
        ends = np.cumsum([sum(map(len, decoding.sounds)) for decoding in heard])
        decoded = {
            decoding: Decoded(own, {} if decoding.window.last else _named(decoding.state))
            for decoding, own in zip(heard, np.split(sound, ends[:-1]), strict=True)
        }
        return [decoded.get(decoding) for decoding in decodings]

    def _validate(self, window: Window) -> None:
        self._validate_codes("codes", window.frames)
        if window.reference is not None:
            self._validate_codes("reference", window.reference)
            if window.index > 0:
                raise ValueError(f"a reference comes with window 0, not with window {window.index}")
        if (window.index > 0) != bool(window.state):
            needed = "its predecessor's" if window.index > 0 else "no"
            raise ValueError(f"window {window.index} needs {needed} state")

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
        """float32 products as this stage needs them, whatever else the process does with them."""
        if self._device.type != "cuda":
            yield
            return
        products = torch.backends.cuda.matmul
        before, products.fp32_precision = products.fp32_precision, "tf32" if self._tf32 else "ieee"
        try:
            yield
        finally:
            products.fp32_precision = before


def _is_dropped(window: Window) -> bool:
    try:
        window.check()
    except Dropped:
        return True
    return False


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _named(state: Packed) -> dict[str, Tensor]:
    return {_name(rows.dtype): rows for rows in state}


def load_acoustic(folder: Path, settings: dict[str, Any]) -> SpeechAcoustic:
    """The acoustic stage of a checkpoint.

    Args:
        folder: the checkpoint.
        settings: the defaults in brackets: `device` ("cpu"); `dtype` ("float32", or "bfloat16", or on CUDA "tf32");
            `lengths` ([1, 2, 4, 8, 16, 25]), the frames of a call of the decoder, which a ramp best keeps to unless
            windows are `padded` (false) to the next length, so that those of many lengths share a call; `batch`
            (1), the windows that a call may decode; `cuda_graph` (true on CUDA, where alone it can be); `compile`
            (false), which takes some seconds at the start.

    Raises:
        CheckpointError: the checkpoint is not whole, or is not one of this family.
        ValueError: a setting is not one of these, or `batch` is one that bytes would hang on: see `warm_up`.
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
    batch = settings.get("batch", 1)
    if type(batch) is not int:
        raise ValueError(f"batch must be a whole number, got {batch!r}")
    cuda_graph = switch(settings, "cuda_graph", device.type == "cuda")
    if cuda_graph and device.type != "cuda":
        raise ValueError(f"cuda_graph: true is for CUDA, and the device is {device.type}")
    compiled = switch(settings, "compile", False)
    decoder = load_code2wav(folder, device, _DTYPES[dtype])
    if compiled:
        decoder.compile_kernels()
    acoustic = SpeechAcoustic(
        decoder, lengths=tuple(lengths), padded=switch(settings, "padded", False), batch=batch, tf32=dtype == "tf32",
        cuda_graph=cuda_graph,
    )  # fmt: skip
    if batch > 1 or cuda_graph or compiled:
        acoustic.warm_up()
    return acoustic
