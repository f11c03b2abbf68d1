"""The voice as a checkpoint: its configs, its modules before training, and its export."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from workers.models.qwen3_tts import config
from workers.models.qwen3_tts.checkpoint import (
    FEATURES,
    GENERATION,
    PREPROCESSOR,
    Size,
    model_config,
    speech_tokenizer_config,
)
from workers.models.qwen3_tts.talker import Beside
from workers.models.qwen3_tts.tokenizer import write_phoneme_tokenizer
from workers.models.random_weights import write_json
from workers.runners.torch_qwen3 import Qwen3Config
from workers.training.codec import Codec
from workers.training.sizes import CODEBOOKS, CODES, DECODER, PREDICTOR, TALKER
from workers.training.talker import TrainedTalker

SPEAKER = "heart"  # the teacher's name for the voice
_SPEAKER_ID = CODES + 900

WIDTHS = Size(
    name=config.SMALL,
    talker=TALKER,
    predictor=PREDICTOR,
    speaker_encoder={},
    decoder=DECODER,
    encoder={},
    dtype=torch.bfloat16,
    end_scale=1.0,
    codebooks=CODEBOOKS,
    codes=CODES,
    phonemes=True,
)
_GENERATION = GENERATION | {  # one voice, spoken one way: little is left to chance
    "repetition_penalty": 1.0,
    "temperature": 0.6,
    "top_k": 20,
    "subtalker_temperature": 0.6,
    "subtalker_top_k": 20,
}


def write_configs(folder: Path, *, front_end: bool = True) -> None:
    """All of the checkpoint but its weights.

    Args:
        front_end: have texts read as phonemes; without it, they are phonemes already.
    """
    ids = write_phoneme_tokenizer(folder)
    stated = model_config(WIDTHS, config.CUSTOM_VOICE) | ids
    talker = stated["talker_config"]
    talker["spk_id"] = {SPEAKER: _SPEAKER_ID}
    talker["spk_is_dialect"] = {SPEAKER: False}
    stated["chunk_ramp"] = config.GENTLE  # on two cores a frame takes about half of its time
    if not front_end:
        stated.pop("text_front_end", None)
    write_json(folder / "config.json", stated)
    write_json(folder / "generation_config.json", _GENERATION)
    write_json(folder / "preprocessor_config.json", PREPROCESSOR)
    speech_tokenizer = folder / config.SPEECH_TOKENIZER
    write_json(speech_tokenizer / "config.json", speech_tokenizer_config(WIDTHS))
    write_json(speech_tokenizer / "preprocessor_config.json", FEATURES)


def new_talker() -> TrainedTalker:
    """The talker before its training."""
    with tempfile.TemporaryDirectory() as folder:
        write_configs(Path(folder))
        stated, section = config.load_config(Path(folder)), config.talker_section(Path(folder))
    predictor = Qwen3Config.from_json(section["code_predictor_config"])
    return TrainedTalker(
        Beside(stated.talker, predictor, stated.codebooks),
        Qwen3Config.from_json(section),
        pad=stated.tts_pad,
        end=stated.talker.codec_eos_token_id,
    )


def export(folder: Path, codec: Codec, talker: TrainedTalker) -> None:
    """Write the checkpoint, its weights in bfloat16."""
    write_configs(folder)
    save_file(_in_bfloat16(talker_tensors(talker)), folder / "model.safetensors", {"format": "pt"})
    speech_tokenizer = folder / config.SPEECH_TOKENIZER
    save_file(_in_bfloat16(decoder_tensors(codec)), speech_tokenizer / "model.safetensors", {"format": "pt"})


def talker_tensors(talker: TrainedTalker) -> dict[str, Tensor]:
    """Under the published names."""
    tensors = {f"model.{name}": tensor for name, tensor in talker.model.state_dict().items()}
    for name, tensor in talker.beside.state_dict().items():
        within = "model." if name.startswith(("codec_embedding.", "text_embedding.")) else ""
        tensors[within + name] = tensor
    return {config.TALKER_PREFIX + name: tensor for name, tensor in tensors.items()}


def decoder_tensors(codec: Codec) -> dict[str, Tensor]:
    """Under the published names. Of a codebook, the entries themselves: bfloat16 would bend sums and counts apart."""
    tensors = codec.decoder.state_dict()
    for name in [name for name in tensors if name.endswith("cluster_usage")]:
        usage = tensors[name].float().clamp(min=1e-5)
        sums = name.replace("cluster_usage", "embedding_sum")
        tensors[sums] = tensors[sums].float() / usage[:, None]
        tensors[name] = torch.ones_like(usage)
    for part, books in (("rvq_first", codec.first), ("rvq_rest", codec.rest)):
        tensors[f"quantizer.{part}.input_proj.weight"] = books.input_proj.weight.detach()[:, :, None]
    return {config.DECODER_PREFIX + name: tensor for name, tensor in tensors.items()}


def _in_bfloat16(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
