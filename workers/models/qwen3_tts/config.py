"""The constants of Qwen3-TTS (12 Hz), and the sizes that a checkpoint's configs state.

Imports neither torch nor anything heavier, since the api reads it too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from workers.checkpoints import CheckpointError
from workers.models.family import Backbone
from workers.talker.loops import LoopGuard
from workers.talker.windows import RampPlan

MODEL = "qwen3_tts"
ARCHITECTURE = "Qwen3TTSForConditionalGeneration"

# Frames and sound.
FRAME_RATE = 12.5  # a second
SAMPLE_RATE = 24_000  # Hz
FRAME_SAMPLES = 1_920
CHANNELS = 1
ROWS = 1
LEAD = 0
MIN_FRAMES = 2  # before the end may be drawn
SUPPRESSED = 1_024  # ids above the codes in the talker's vocabulary: never drawn, but for the end
MOST_CODES = 1 << 15  # of a codebook: codes are logged as int16
CONTEXT = 32_768  # positions that the backbone was trained with

# Chunks: of how many frames each is. The first is as short as can be, the next ones grow, and all others are alike.
FIRST_CHUNK_FRAMES = 1
# How they grow: twice as long as the one before, for a talker that draws a frame in less than half of its time; or half
# as long as all before it together, for one that needs up to two thirds.
STEEP, GENTLE = "steep", "gentle"
HOP = 25

# Twelve seconds of one sound, or of a syllable of a second at most: no speech, but a model that has lost its way.
LOOPS = LoopGuard(frames=150, period=13)

# How long a request may be.
MAX_FRAMES = 8_192  # the budget where neither request nor checkpoint says another
SPARE_FRAMES = 192  # of every budget, for pauses
MAX_REFERENCE_FRAMES = 750  # 60 s
MAX_INPUT_CHARS = 50_000  # a tokenizer holds up the whole api for as long as it works
MAX_INSTRUCTIONS_CHARS = 4_000

# What a checkpoint can do, as `tts_model_type` says it.
CUSTOM_VOICE = "custom_voice"
VOICE_DESIGN = "voice_design"
BASE = "base"
TASKS = (CUSTOM_VOICE, VOICE_DESIGN, BASE)
SMALL = "0b6"  # the `tts_model_size` of the CustomVoice model that takes no instructions

FRONT_END = "hibari"  # what may read a text before it is encoded

AUTO = "auto"  # the language, where the model is to find out

TOP = "."  # the folder of config, talker, speaker encoder and text tokenizer: the checkpoint's own
SPEECH_TOKENIZER = "speech_tokenizer"
SPEECH_TOKENIZER_KIND = "qwen3_tts_tokenizer_12hz"
TALKER_PREFIX = "talker."
SPEAKER_ENCODER_PREFIX = "speaker_encoder."
DECODER_PREFIX = "decoder."
ENCODER_PREFIX = "encoder."

# Of the random checkpoints that can be made: CustomVoice, VoiceDesign and Base, and a voice of few codes and phonemes.
CHECKPOINT_SIZES = (
    *(f"{size}{kind}" for size in ("tiny", "0.6b", "1.7b") for kind in ("", "-design", "-base")),
    "tiny-8",
)

_Sizes = TypeVar("_Sizes", "TalkerConfig", "DecoderConfig")


class ConfigError(CheckpointError):
    """The checkpoint's configuration is not one of this family. `str()` names the file and the field."""


def plan(first_chunk: int = FIRST_CHUNK_FRAMES, chunk_ramp: str = STEEP) -> RampPlan:
    """How an utterance is cut, by the frames of its first chunk and how the next ones grow: by the request alone."""
    ramp = [first_chunk]
    while (following := _following(ramp, chunk_ramp)) < HOP:
        ramp.append(following)
    return RampPlan(tuple(ramp), HOP)


def _following(ramp: list[int], chunk_ramp: str) -> int:
    return 2 * ramp[-1] if chunk_ramp == STEEP else max(ramp[-1], sum(ramp) // 2 + 1)


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A Qwen3 decoder's; the code predictor's own has no more."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float


@dataclass(frozen=True, slots=True)
class TalkerConfig(DecoderConfig):
    """The talker's decoder, its two vocabularies, and the ids that steer it."""

    max_position_embeddings: int
    text_vocab_size: int
    text_hidden_size: int
    codec_bos_id: int
    codec_eos_token_id: int
    codec_pad_id: int
    codec_think_id: int
    codec_nothink_id: int
    codec_think_bos_id: int
    codec_think_eos_id: int


@dataclass(frozen=True, slots=True)
class SpeakerEncoderConfig:
    """The speaker encoder's widths; what a config does not say has the published value."""

    mel_dim: int = 128
    enc_dim: int = 1_024
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1_536)
    enc_kernel_sizes: tuple[int, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[int, ...] = (1, 2, 3, 4, 1)
    enc_attention_channels: int = 128
    enc_res2net_scale: int = 8
    enc_se_channels: int = 128
    sample_rate: int = SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class Pace:
    """Frames that a token of text takes: a text for which not even `least` fit would be cut off."""

    least: float
    most: int


OF_TOKENS = Pace(least=2, most=12)  # about four are usual
OF_PHONEMES = Pace(least=0.4, most=3)  # about 0.8


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """What reads a text before it is encoded: `text_front_end`."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class SpeechConfig:
    """A checkpoint's config.json.

    codebooks: of a frame. im_start, im_end, tts_pad, tts_bos, tts_eos: ids of the text vocabulary. assistant: the id of
    that word, or None where it is no token of its own. speakers: ids in the talker's vocabulary, by name in lower case.
    dialects: the language that a speaker has of his own, for those who have one. languages: ids in the talker's
    vocabulary, dialects included, by name in lower case. front_end: None where a text is encoded as it is.
    streaming_text: whether a text may be spread over its frames. chunk_ramp: STEEP or GENTLE.
    """

    task: str
    size: str
    codebooks: int
    im_start: int
    im_end: int
    assistant: int | None
    tts_pad: int
    tts_bos: int
    tts_eos: int
    talker: TalkerConfig
    predictor: DecoderConfig
    speaker_encoder: SpeakerEncoderConfig
    speakers: Mapping[str, int]
    dialects: Mapping[str, str]
    languages: Mapping[str, int]
    front_end: FrontEnd | None
    streaming_text: bool
    chunk_ramp: str

    @property
    def pace(self) -> Pace:
        return OF_TOKENS if self.front_end is None else OF_PHONEMES

    @property
    def codes(self) -> int:
        """Of each codebook; the ids above them in the talker's vocabulary are no sounds."""
        return self.predictor.vocab_size

    @property
    def spoken_languages(self) -> list[str]:
        """What a request may name, besides "auto": no dialects, which belong to their speakers."""
        return [name for name in self.languages if "dialect" not in name]

    @property
    def takes_instructions(self) -> bool:
        return self.task == VOICE_DESIGN or (self.task == CUSTOM_VOICE and self.size != SMALL)


def load_config(folder: Path) -> SpeechConfig:
    """The checkpoint's config, checked for what the pipeline rests on; raises ConfigError."""
    path = folder / "config.json"
    stated = read_json(path)
    if (model := stated.get("model_type")) != MODEL:
        raise ConfigError(f"{path}: model_type is {model!r}, not {MODEL!r}: name the model that it is by --model")
    if stated.get("tokenizer_type") != SPEECH_TOKENIZER_KIND:
        raise ConfigError(f"{path}: tokenizer_type is {stated.get('tokenizer_type')!r}, not {SPEECH_TOKENIZER_KIND!r}")
    if stated.get("tts_model_type") not in TASKS:
        raise ConfigError(f"{path}: tts_model_type is {stated.get('tts_model_type')!r}, not one of {', '.join(TASKS)}")
    talker = _section(stated, "talker_config", path)
    predictor = _section(talker, "code_predictor_config", path)
    dialects = talker.get("spk_is_dialect") or {}
    try:
        config = SpeechConfig(
            task=stated["tts_model_type"],
            size=stated.get("tts_model_size") or "",
            codebooks=_codebooks(talker, predictor, path),
            im_start=stated["im_start_token_id"],
            im_end=stated["im_end_token_id"],
            assistant=stated.get("assistant_token_id"),
            tts_pad=stated["tts_pad_token_id"],
            tts_bos=stated["tts_bos_token_id"],
            tts_eos=stated["tts_eos_token_id"],
            talker=_sizes(TalkerConfig, talker, "talker_config", path),
            predictor=_sizes(DecoderConfig, predictor, "code_predictor_config", path),
            speaker_encoder=speaker_encoder_config(stated.get("speaker_encoder_config") or {}),
            speakers=talker.get("spk_id") or {},
            dialects={name: dialect for name, dialect in dialects.items() if dialect},
            languages=talker.get("codec_language_id") or {},
            front_end=_front_end(stated, path),
            streaming_text=_streaming_text(stated, path),
            chunk_ramp=_chunk_ramp(stated, path),
        )
    except KeyError as missing:
        raise ConfigError(f"{path} lacks {missing}") from None
    _check_ids(config, path)
    return config


def speaker_encoder_config(stated: Mapping[str, Any]) -> SpeakerEncoderConfig:
    """From its section of config.json, which may leave out everything."""
    known = {field.name for field in fields(SpeakerEncoderConfig)}
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in stated.items() if name in known
    }
    return SpeakerEncoderConfig(**values)


def talker_section(folder: Path) -> dict[str, Any]:
    """`talker_config` as stated, for who builds a decoder of it."""
    return _section(read_json(folder / "config.json"), "talker_config", folder / "config.json")


def backbone(folder: Path) -> Backbone:
    """The talker's decoder, for an engine. Its three position ids are always equal, which is plain RoPE."""
    section = talker_section(folder)
    names = {field.name for field in fields(TalkerConfig)} - {"rope_theta"}
    stated = {name: value for name, value in section.items() if name in names and "codec_" not in name}
    stated |= {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": section.get("hidden_act", "silu"),
        "attention_bias": section.get("attention_bias", False),
        "rope_parameters": {"rope_type": "default", "rope_theta": section["rope_theta"]},
        "tie_word_embeddings": False,
    }
    beside = ("model.text_embedding.", "text_projection.", "codec_head.", "code_predictor.")
    return Backbone(
        folder, TOP, stated, prefix=f"{TALKER_PREFIX}model.", embed="codec_embedding",
        beside=(*(TALKER_PREFIX + name for name in beside), SPEAKER_ENCODER_PREFIX),
    )  # fmt: skip


def speech_tokenizer_config(folder: Path) -> dict[str, Any]:
    """The speech tokenizer's config.json, as stated; raises ConfigError where its rates are not this family's."""
    path = folder / SPEECH_TOKENIZER / "config.json"
    stated = read_json(path)
    if stated.get("model_type") != SPEECH_TOKENIZER_KIND:
        raise ConfigError(f"{path}: model_type is {stated.get('model_type')!r}, not {SPEECH_TOKENIZER_KIND!r}")
    for name, wanted in (
        ("output_sample_rate", SAMPLE_RATE),
        ("input_sample_rate", SAMPLE_RATE),
        ("decode_upsample_rate", FRAME_SAMPLES),
        ("encode_downsample_rate", FRAME_SAMPLES),
    ):
        if stated.get(name, wanted) != wanted:
            raise ConfigError(f"{path}: {name} is {stated[name]!r}, not {wanted}")
    return stated


def generation_defaults(folder: Path) -> dict[str, Any]:
    """generation_config.json: the checkpoint's own sampling parameters; {} where it has none."""
    path = folder / "generation_config.json"
    return read_json(path) if path.exists() else {}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; raises ConfigError where the file is missing or holds something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no JSON object")
    return content


def _section(stated: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    section = stated.get(name)
    if not isinstance(section, dict):
        raise ConfigError(f"{path} has no section {name}")
    return section


def _sizes(kind: type[_Sizes], stated: Mapping[str, Any], section: str, path: Path) -> _Sizes:
    names = [field.name for field in fields(kind)]
    if missing := [name for name in names if name not in stated]:
        raise ConfigError(f"{path}: {section} lacks {missing[0]}")
    return kind(**{name: stated[name] for name in names})


def _codebooks(talker: Mapping[str, Any], predictor: Mapping[str, Any], path: Path) -> int:
    """Of a frame, the first one included."""
    codebooks, others = talker.get("num_code_groups"), predictor.get("num_code_groups")
    if type(codebooks) is not int or codebooks < 2:
        raise ConfigError(f"{path}: talker_config has {codebooks!r} code groups (num_code_groups), not 2 or more")
    if others != codebooks:
        raise ConfigError(f"{path}: talker_config has {codebooks} code groups, and code_predictor_config {others!r}")
    return codebooks


def _front_end(stated: Mapping[str, Any], path: Path) -> FrontEnd | None:
    asked = stated.get("text_front_end")
    if asked is None:
        return None
    if not isinstance(asked, dict) or asked.keys() != {"name", "version"} or asked["name"] != FRONT_END:
        raise ConfigError(f"{path}: text_front_end is {asked!r}: only {FRONT_END!r} is known, by name and version")
    if not isinstance(asked["version"], str):
        raise ConfigError(f"{path}: text_front_end has version {asked['version']!r}, which is no string")
    return FrontEnd(**asked)


def _streaming_text(stated: Mapping[str, Any], path: Path) -> bool:
    streaming = stated.get("streaming_text", True)
    if not isinstance(streaming, bool):
        raise ConfigError(f"{path}: streaming_text is {streaming!r}, neither true nor false")
    return streaming


def _chunk_ramp(stated: Mapping[str, Any], path: Path) -> str:
    ramp = stated.get("chunk_ramp", STEEP)
    if ramp not in (STEEP, GENTLE):
        raise ConfigError(f"{path}: chunk_ramp is {ramp!r}, neither {STEEP!r} nor {GENTLE!r}")
    return str(ramp)


def _check_ids(config: SpeechConfig, path: Path) -> None:
    talker, codes = config.talker, config.codes
    if type(codes) is not int or not 2 <= codes <= MOST_CODES:
        raise ConfigError(f"{path}: code_predictor_config has {codes!r} codes (vocab_size), not 2 to {MOST_CODES}")
    if talker.vocab_size != codes + SUPPRESSED:
        raise ConfigError(
            f"{path}: talker_config has {talker.vocab_size} ids (vocab_size), not the predictor's {codes} codes and "
            f"{SUPPRESSED} that steer"
        )
    steering = [getattr(talker, field.name) for field in fields(TalkerConfig) if field.name.startswith("codec_")]
    for id_ in (*steering, *config.speakers.values(), *config.languages.values()):
        if not codes <= id_ < talker.vocab_size:
            raise ConfigError(f"{path}: id {id_} is a code, or beyond the talker's {talker.vocab_size} ids")
    if config.task == CUSTOM_VOICE and not config.speakers:
        raise ConfigError(f"{path}: a {CUSTOM_VOICE} model without speakers (spk_id)")
    for name, dialect in config.dialects.items():
        if dialect not in config.languages:
            raise ConfigError(f"{path}: speaker {name!r} speaks {dialect!r}, which is no language there")
    words = (config.im_start, config.im_end, config.tts_pad, config.tts_bos, config.tts_eos)
    for id_ in words if config.assistant is None else (*words, config.assistant):
        if not 0 <= id_ < talker.text_vocab_size:
            raise ConfigError(f"{path}: text token {id_} is beyond the {talker.text_vocab_size} text tokens")
