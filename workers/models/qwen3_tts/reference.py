"""Reference audio: what a recording of a voice becomes, once, for all that is spoken with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from broker_schemas.events import JobRequested
from workers.checkpoints import CheckpointError, component_config, fill_module, load_tensors, stated_shapes
from workers.models.family import Reference
from workers.models.qwen3_tts import config
from workers.models.qwen3_tts.mel import log_mel
from workers.models.qwen3_tts.prompt import in_context
from workers.models.qwen3_tts.resampling import resample
from workers.models.qwen3_tts.speaker_encoder import SpeakerEncoder
from workers.models.qwen3_tts.speech_encoder import SpeechEncoder, SpeechEncoderConfig

_TOP = "."  # the checkpoint's own config and weights lie beside its components
_OPTIONS = frozenset({"device"})


class ReferenceEncoder:
    """Implements `workers.models.family.ReferenceModel`.

    Encodes one recording at a time, whole and unpadded, in float32: the same recording gives the same bits.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Load the encoders of a checkpoint.

        Args:
            settings: `device` ("cpu").

        Raises:
            CheckpointError: the checkpoint has no encoders, or their weights do not fit their configs.
            PartialDownload: files are missing or cut short.
            ValueError: an unknown setting.
        """
        unknown = settings.keys() - _OPTIONS
        if unknown:
            raise ValueError(f"unknown reference settings: {', '.join(sorted(unknown))}")
        self._device = torch.device(settings.get("device", "cpu"))
        self._speaker = _load_speaker_encoder(folder, self._device)
        self._speech = _load_speech_encoder(folder, self._device)

    def wants_codes(self, request: JobRequested) -> bool:
        return in_context(request.params)

    def encode(self, pcm: np.ndarray, rate: int, with_codes: bool) -> Reference:
        """(samples,) float32 mono at `rate` Hz; `with_codes` for an in-context clone. See `read_audio` for limits."""
        return Reference(self.speaker_vector(pcm, rate), self.reference_codes(pcm, rate) if with_codes else None)

    @torch.inference_mode()
    def speaker_vector(self, pcm: np.ndarray, rate: int) -> np.ndarray:
        """(samples,) float32 -> (enc_dim,) float32."""
        heard = self._heard(pcm, rate)
        with _full_precision():
            return self._speaker(log_mel(heard)[None])[0].cpu().numpy()

    @torch.inference_mode()
    def reference_codes(self, pcm: np.ndarray, rate: int) -> np.ndarray:
        """(samples,) float32 -> (frames, codebooks) int16, a frame for each begun 80 ms."""
        heard = self._heard(pcm, rate)
        with _full_precision():
            return self._speech(heard).to(torch.int16).cpu().numpy()

    def _heard(self, pcm: np.ndarray, rate: int) -> torch.Tensor:
        return torch.from_numpy(resample(pcm, rate, config.SAMPLE_RATE).copy()).to(self._device)


def _full_precision() -> Any:
    """cuDNN would else convolve in TF32."""
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=False, deterministic=True, benchmark=False)


def _load_speaker_encoder(folder: Path, device: torch.device) -> SpeakerEncoder:
    tensors = _encoder_tensors(folder, _TOP, config.SPEAKER_ENCODER_PREFIX, device)
    stated = component_config(folder, _TOP).get("speaker_encoder_config") or {}
    return _filled(SpeakerEncoder, config.speaker_encoder_config(stated), tensors, "the speaker encoder")


def _load_speech_encoder(folder: Path, device: torch.device) -> SpeechEncoder:
    tensors = _encoder_tensors(folder, config.SPEECH_TOKENIZER, config.ENCODER_PREFIX, device)
    talker, stated = config.load_config(folder), config.speech_tokenizer_config(folder).get("encoder_config") or {}
    sizes = SpeechEncoderConfig.read(stated, talker.codebooks, talker.codes)
    return _filled(SpeechEncoder, sizes, tensors, "the speech tokenizer's encoder")


def _encoder_tensors(folder: Path, component: str, prefix: str, device: torch.device) -> dict[str, torch.Tensor]:
    names = [name for name in stated_shapes(folder, component) if name.startswith(prefix)]
    if not names:
        kind = component_config(folder, _TOP).get("tts_model_type", "unknown")
        raise CheckpointError(
            f"checkpoint {folder} has no {prefix.rstrip('.')} weights and cannot clone a voice (its kind is {kind}):"
            " reference audio needs a Base checkpoint"
        )
    tensors = load_tensors(folder, component, names)
    return {name.removeprefix(prefix): tensor.to(device, torch.float32) for name, tensor in tensors.items()}


def _filled(kind: type[nn.Module], sizes: Any, tensors: Mapping[str, torch.Tensor], name: str) -> Any:
    with torch.device("meta"):
        module = kind(sizes)
    fill_module(module, tensors, name)
    return module
