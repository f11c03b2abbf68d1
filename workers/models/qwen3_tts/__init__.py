"""Qwen3-TTS, 12 Hz: text in, speech out.

Importing the package loads neither torch nor transformers, so that the api can read the contract alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from broker_schemas.contract import Contract
from broker_schemas.events import JobRequested
from workers.models.family import AcousticModel, Bundled, EmbedTokens, Family, ReferenceModel, TalkerModel
from workers.models.qwen3_tts import config
from workers.models.qwen3_tts.code2wav_sizes import check_codes
from workers.talker.windows import RampPlan


def _plan(request: JobRequested) -> RampPlan:
    return config.plan(request.params["first_chunk_frames"], request.params.get("chunk_ramp", config.STEEP))


def _codebooks(folder: Path) -> int:
    return config.load_config(folder).codebooks


def _contract(folder: Path, max_model_len: int) -> Contract:
    from workers.models.qwen3_tts.contract import SpeechContract

    check_codes(folder)
    return SpeechContract(folder, max_model_len)


def _talker(folder: Path, settings: dict[str, Any], embed_tokens: EmbedTokens | None = None) -> TalkerModel:
    from workers.models.qwen3_tts.talker import load_talker

    check_codes(folder)
    return load_talker(folder, settings, embed_tokens)


def _acoustic(folder: Path, settings: dict[str, Any]) -> AcousticModel:
    from workers.models.qwen3_tts.acoustic import load_acoustic

    check_codes(folder)
    return load_acoustic(folder, settings)


def _reference(folder: Path, settings: dict[str, Any]) -> ReferenceModel | None:
    if config.load_config(folder).task != config.BASE:
        return None
    from workers.models.qwen3_tts.reference import ReferenceEncoder

    return ReferenceEncoder(folder, {"device": settings.get("device", "cpu")})


def _make_checkpoint(folder: Path, size: str, seed: int) -> None:
    from workers.models.qwen3_tts.checkpoint import make_checkpoint

    make_checkpoint(folder, size, seed)


FAMILY = Family(
    name=config.MODEL,
    plan=_plan,
    longest_span=config.plan().longest_span,
    codebooks=_codebooks,
    rows=config.ROWS,
    talker_components=(config.TOP, config.SPEECH_TOKENIZER),
    acoustic_components=(config.SPEECH_TOKENIZER,),
    sizes=config.CHECKPOINT_SIZES,
    contract=_contract,
    backbone=config.backbone,
    talker=_talker,
    acoustic=_acoustic,
    make_checkpoint=_make_checkpoint,
    loops=config.LOOPS,
    reference=_reference,
    bundled=Bundled(Path(__file__).parent / "voice", "qwen3_tts_small"),
)
