"""MiniMax-Music3: lyrics and a caption in, a stereo song out.

Importing the package loads neither torch nor diffusers, so that the api can read the contract alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from broker_schemas.contract import Contract
from workers.models.family import AcousticModel, Backbone, EmbedTokens, Family, TalkerModel
from workers.models.minimax_music3 import config


def _contract(folder: Path, max_model_len: int) -> Contract:
    from workers.models.minimax_music3.contract import MusicContract

    return MusicContract(folder, max_model_len)


def _talker(folder: Path, settings: dict[str, Any], embed_tokens: EmbedTokens | None = None) -> TalkerModel:
    from workers.models.minimax_music3.talker import load_talker

    return load_talker(folder, settings, embed_tokens)


def _backbone(folder: Path) -> Backbone:
    stated = config.component_config(folder, config.LANGUAGE_MODEL)
    return Backbone(folder, config.LANGUAGE_MODEL, stated, prefix="model.", embed="embed_tokens", beside=("lm_head.",))


def _acoustic(folder: Path, settings: dict[str, Any]) -> AcousticModel:
    from workers.models.minimax_music3.acoustic import load_acoustic

    return load_acoustic(folder, settings)


def _make_checkpoint(folder: Path, size: str, seed: int) -> None:
    from workers.models.minimax_music3.checkpoint import make_checkpoint

    make_checkpoint(folder, size, seed)


FAMILY = Family(
    name=config.MODEL,
    plan=lambda request: config.PLAN,
    longest_span=config.PLAN.longest_span,
    codebooks=lambda folder: config.CODEBOOKS,
    rows=config.ROWS,
    talker_components=(*config.TALKER_COMPONENTS, config.TOKENIZER),
    acoustic_components=(*config.ACOUSTIC_COMPONENTS, config.SCHEDULER),
    sizes=("tiny", "true"),
    contract=_contract,
    backbone=_backbone,
    talker=_talker,
    acoustic=_acoustic,
    make_checkpoint=_make_checkpoint,
)
