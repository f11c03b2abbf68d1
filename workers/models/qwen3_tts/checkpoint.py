"""Random checkpoints in the published format, for tests, demos and measurements.

Scales are chosen by how variance travels through each layer, so that every stage puts out an RMS between 0.05 and 0.5,
logits have a standard deviation near 2.5, and utterances end by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from workers.models.qwen3_tts import config, phonemes
from workers.models.qwen3_tts.tokenizer import PHONEME_VOCABULARY, write_phoneme_tokenizer, write_tokenizer
from workers.models.random_weights import Weight, check_new, write_json, write_shards

_LOGIT_STD = 2.5
_HIDDEN_RMS = 0.3  # of both decoders' hidden states: their last norm's weight
_TEXT_RMS = 0.5  # of a projected text embedding
_ENCODER_CODEBOOKS = 32  # of which only the talker's count

_CODEBOOKS, _CODES = 16, 2_048
# Ids of the talker's vocabulary, above its codes.
_LANGUAGES = {
    "chinese": 2055, "english": 2050, "german": 2053, "italian": 2070, "portuguese": 2071, "spanish": 2054,
    "japanese": 2058, "korean": 2064, "french": 2061, "russian": 2069, "beijing_dialect": 2074,
    "sichuan_dialect": 2062,
}  # fmt: skip
_SPEAKERS = {
    "serena": 3066, "vivian": 3065, "uncle_fu": 3010, "ryan": 3061, "aiden": 2861, "ono_anna": 2873, "sohee": 2864,
    "eric": 2875, "dylan": 2878,
}  # fmt: skip
_ENGLISH = {"english": 2050}
_TWO = {name: _SPEAKERS[name] for name in ("ryan", "vivian")}
_DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}


@dataclass(frozen=True, slots=True)
class Size:
    """The widths of a checkpoint, as its configs state them, and the dtype of talker and speaker encoder.

    Of one with a vocabulary of phonemes there is no encoder, one language, and two voices.
    """

    name: str  # `tts_model_size`
    talker: dict[str, Any]
    predictor: dict[str, Any]
    speaker_encoder: dict[str, Any]
    decoder: dict[str, Any]
    encoder: dict[str, Any]
    dtype: torch.dtype
    end_scale: float  # of the end's row of the head, beside the codes' rows
    codebooks: int = _CODEBOOKS
    codes: int = _CODES
    phonemes: bool = False

    @property
    def text_vocab(self) -> int:
        return PHONEME_VOCABULARY if self.phonemes else 151_936

    def steering(self, ids: dict[str, int]) -> dict[str, int]:
        """Published ids above the codes, as they are above this checkpoint's codes."""
        return {name: id_ - _CODES + self.codes for name, id_ in ids.items()}


_TINY = Size(
    name="tiny",
    talker={
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,  # the least that vLLM has on the CPU
        "text_hidden_size": 32,
        "mrope_section": [6, 5, 5],
    },
    predictor={
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
    },
    speaker_encoder={
        "enc_channels": [32, 32, 32, 32, 96],
        "enc_attention_channels": 16,
        "enc_se_channels": 16,
    },
    decoder={
        "codebook_dim": 64,
        "decoder_dim": 64,
        "head_dim": 32,
        "hidden_size": 64,
        "intermediate_size": 128,
        "latent_dim": 64,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
    },
    encoder={
        "codebook_dim": 32,
        "head_dim": 32,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "num_filters": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "upsample_groups": 64,
        "vector_quantization_hidden_dimension": 32,
    },
    dtype=torch.float32,
    end_scale=1.8,
)

_PREDICTOR = {
    "hidden_size": 1_024,
    "intermediate_size": 3_072,
    "num_hidden_layers": 5,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
_DECODER = {
    "codebook_dim": 512,
    "decoder_dim": 1_536,
    "head_dim": 64,
    "hidden_size": 512,
    "intermediate_size": 1_024,
    "latent_dim": 1_024,
    "num_attention_heads": 16,
    "num_hidden_layers": 8,
    "num_key_value_heads": 16,
}
_ENCODER = {
    "codebook_dim": 256,
    "head_dim": 64,
    "hidden_size": 512,
    "intermediate_size": 2_048,
    "num_attention_heads": 8,
    "num_filters": 64,
    "num_hidden_layers": 8,
    "num_key_value_heads": 8,
    "upsample_groups": 512,
    "vector_quantization_hidden_dimension": 256,
}


def _true_size(name: str, hidden: int, intermediate: int) -> Size:
    return Size(
        name=name,
        talker={
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "text_hidden_size": 2_048,
            "mrope_section": [24, 20, 20],
        },
        predictor=_PREDICTOR,
        speaker_encoder={},
        decoder=_DECODER,
        encoder=_ENCODER,
        dtype=torch.bfloat16,
        end_scale=1.45,
    )


WIDTHS = {"tiny": _TINY, "0.6b": _true_size("0b6", 1_024, 3_072), "1.7b": _true_size("1b7", 2_048, 6_144)}
_KINDS = {"": config.CUSTOM_VOICE, "-design": config.VOICE_DESIGN, "-base": config.BASE}
_TINY_8 = replace(_TINY, name=config.SMALL, codebooks=8, codes=1_024, phonemes=True)
SIZES = {f"{size}{suffix}": (widths, task) for size, widths in WIDTHS.items() for suffix, task in _KINDS.items()}
SIZES["tiny-8"] = (_TINY_8, config.CUSTOM_VOICE)


def make_checkpoint(folder: Path, size: str, seed: int, device: str = "cpu") -> None:
    """Write a random checkpoint into a folder, which may exist if it is empty.

    Args:
        folder: where to.
        size: "tiny" (about 50 MB, float32), "0.6b" or "1.7b" (true sizes: the talker bfloat16, the speech tokenizer
            float32); with "-design" or "-base" the VoiceDesign or Base model of that size, else CustomVoice. "tiny-8"
            has frames of eight codes, and reads phonemes.
        seed: another seed, another checkpoint.
        device: what draws the numbers; their bits depend on its kind.

    Raises:
        ValueError: no such size.
        FileExistsError: the folder holds something.
    """
    check_new(folder, size, SIZES)
    widths, task = SIZES[size]
    on = torch.device(device)
    write_json(folder / "generation_config.json", GENERATION)
    write_json(folder / "preprocessor_config.json", PREPROCESSOR)
    ids = _write_tokenizer(folder, widths)
    write_json(folder / "config.json", model_config(widths, task) | ids)
    drawn = ((w.name, w.draw(config.MODEL, seed, on).to(widths.dtype)) for w in model_weights(widths, task))
    write_shards(folder, "model", drawn)
    _write_speech_tokenizer(folder / config.SPEECH_TOKENIZER, widths, seed, on)


def _write_speech_tokenizer(folder: Path, widths: Size, seed: int, device: torch.device) -> None:
    write_json(folder / "config.json", speech_tokenizer_config(widths))
    write_json(folder / "preprocessor_config.json", FEATURES)
    parts = [_decoder(widths)] if widths.phonemes else [_decoder(widths), _encoder(widths)]
    drawn = ((w.name, w.draw(config.SPEECH_TOKENIZER, seed, device)) for weights in parts for w in weights)
    write_shards(folder, "model", drawn)


def _write_tokenizer(folder: Path, widths: Size) -> dict[str, int]:
    """Returns the ids that config.json states of it."""
    if widths.phonemes:
        return write_phoneme_tokenizer(folder)
    write_tokenizer(folder)
    return _TEXT_IDS


# Configs, as published.

GENERATION = {
    "do_sample": True,
    "repetition_penalty": 1.05,
    "temperature": 0.9,
    "top_p": 1.0,
    "top_k": 50,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_p": 1.0,
    "subtalker_top_k": 50,
    "max_new_tokens": 8192,
}
PREPROCESSOR = {
    "padding_side": "left",
    "padding_value": 0.0,
    "processor_class": "Qwen3TTSProcessor",
    "return_attention_mask": True,
}
FEATURES = {
    "chunk_length_s": None,
    "feature_extractor_type": "EncodecFeatureExtractor",
    "feature_size": 1,
    "overlap": None,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "sampling_rate": config.SAMPLE_RATE,
}
_TEXT_IDS = {
    "assistant_token_id": 77_091,
    "im_end_token_id": 151_645,
    "im_start_token_id": 151_644,
    "tts_bos_token_id": 151_672,
    "tts_eos_token_id": 151_673,
    "tts_pad_token_id": 151_671,
}
_STEERING_IDS = {
    "codec_bos_id": 2149,
    "codec_eos_token_id": 2150,
    "codec_nothink_id": 2155,
    "codec_pad_id": 2148,
    "codec_think_bos_id": 2156,
    "codec_think_eos_id": 2157,
    "codec_think_id": 2154,
}
_DECODER_LAYERS = {  # of talker and predictor alike
    "attention_bias": False,
    "attention_dropout": 0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "sliding_window": None,
    "use_cache": True,
    "use_sliding_window": False,
}


def model_config(widths: Size, task: str) -> dict[str, Any]:
    languages, speakers = (_ENGLISH, _TWO) if widths.phonemes else (_LANGUAGES, _SPEAKERS)
    if task != config.CUSTOM_VOICE:
        speakers = {}
    layers = _DECODER_LAYERS | {"num_code_groups": widths.codebooks}
    rope = {"interleaved": True, "mrope_section": widths.talker["mrope_section"]}
    talker = {
        **layers,
        **{name: value for name, value in widths.talker.items() if name != "mrope_section"},
        "code_predictor_config": {
            **layers,
            **widths.predictor,
            "layer_types": ["full_attention"] * widths.predictor["num_hidden_layers"],
            "max_position_embeddings": 65_536,
            "max_window_layers": 28,
            "model_type": "qwen3_tts_talker_code_predictor",
            "rope_scaling": None,
            "tie_word_embeddings": False,
            "vocab_size": widths.codes,
        },
        **widths.steering(_STEERING_IDS),
        "codec_language_id": widths.steering(languages),
        "max_position_embeddings": 32_768,
        "model_type": "qwen3_tts_talker",
        "position_id_per_seconds": 13,
        "rope_scaling": {**rope, "rope_type": "default", "type": "default"},
        "spk_id": widths.steering(speakers),
        "spk_is_dialect": {name: _DIALECTS.get(name, False) for name in speakers},
        "text_vocab_size": widths.text_vocab,
        "vocab_size": widths.codes + config.SUPPRESSED,
    }
    return {
        "architectures": [config.ARCHITECTURE],
        "dtype": str(widths.dtype).removeprefix("torch."),
        "model_type": config.MODEL,
        **(_reads_phonemes() if widths.phonemes else {"speaker_encoder_config": _speaker_encoder_config(widths)}),
        "talker_config": talker,
        "tokenizer_type": config.SPEECH_TOKENIZER_KIND,
        "transformers_version": "4.57.3",
        "tts_model_size": widths.name,
        "tts_model_type": task,
    }


def _reads_phonemes() -> dict[str, Any]:
    return {"streaming_text": False, "text_front_end": phonemes.installed()}


def _speaker_encoder_config(widths: Size) -> dict[str, Any]:
    return {
        "enc_dim": widths.talker["hidden_size"],
        "sample_rate": config.SAMPLE_RATE,
        **widths.speaker_encoder,
    }


def speech_tokenizer_config(widths: Size) -> dict[str, Any]:
    layers = {"attention_bias": False, "attention_dropout": 0.0, "max_position_embeddings": 8_000, "rope_theta": 10_000}
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "decode_upsample_rate": config.FRAME_SAMPLES,
        "decoder_config": {
            **layers,
            "sliding_window": 72,
            **widths.decoder,
            "codebook_size": widths.codes,
            "hidden_act": "silu",
            "layer_scale_initial_scale": 0.01,
            "model_type": "",
            "num_quantizers": widths.codebooks,
            "rms_norm_eps": 1e-5,
            "upsample_rates": list(_DECODER_RATES),
            "upsampling_ratios": list(_LATENT_RATIOS),
        },
        "encode_downsample_rate": config.FRAME_SAMPLES,
        **({} if widths.phonemes else {"encoder_config": layers | _encoder_config(widths)}),
        "encoder_valid_num_quantizers": widths.codebooks,
        "input_sample_rate": config.SAMPLE_RATE,
        "model_type": config.SPEECH_TOKENIZER_KIND,
        "output_sample_rate": config.SAMPLE_RATE,
        "transformers_version": "4.57.3",
    }


def _encoder_config(widths: Size) -> dict[str, Any]:
    return {
        **widths.encoder,
        "_frame_rate": config.FRAME_RATE,
        "audio_channels": 1,
        "codebook_size": widths.codes,
        "compress": 2,
        "dilation_growth_rate": 2,
        "hidden_act": "gelu",
        "initializer_range": 0.02,
        "kernel_size": 7,
        "last_kernel_size": 3,
        "layer_scale_initial_scale": 0.01,
        "model_type": "mimi",
        "norm_eps": 1e-5,
        "num_quantizers": _ENCODER_CODEBOOKS,
        "num_residual_layers": 1,
        "num_semantic_quantizers": 1,
        "pad_mode": "constant",
        "residual_kernel_size": 3,
        "rope_theta": 10_000.0,
        "sampling_rate": config.SAMPLE_RATE,
        "sliding_window": 250,
        "trim_right_ratio": 1.0,
        "upsampling_ratios": list(_ENCODER_RATIOS),
        "use_cache": False,
        "use_causal_conv": True,
        "use_conv_shortcut": False,
        "use_streaming": False,
    }


_DECODER_RATES = (8, 5, 4, 3)
_LATENT_RATIOS = (2, 2)
_ENCODER_RATIOS = (8, 6, 5, 4)


# Weights: names and shapes of the published files.


def model_weights(widths: Size, task: str) -> Iterator[Weight]:
    """All of model.safetensors: the talker, its code predictor, and a Base model's speaker encoder."""
    yield from _talker(widths)
    yield from _code_predictor(widths)
    if task == config.BASE:
        yield from _speaker_encoder(_speaker_encoder_config(widths))


def _talker(widths: Size) -> Iterator[Weight]:
    sizes, ids = widths.talker, widths.codes + config.SUPPRESSED
    hidden, text = sizes["hidden_size"], sizes["text_hidden_size"]
    yield Weight("talker.model.codec_embedding.weight", (ids, hidden), std=0.5)
    yield Weight("talker.model.text_embedding.weight", (widths.text_vocab, text), std=1.0)
    yield Weight("talker.text_projection.linear_fc1.weight", (text, text), std=text**-0.5)
    yield Weight("talker.text_projection.linear_fc1.bias", (text,), std=0.1)
    # silu of a standard normal has an RMS of 0.6
    yield Weight("talker.text_projection.linear_fc2.weight", (hidden, text), std=_TEXT_RMS / 0.6 * text**-0.5)
    yield Weight("talker.text_projection.linear_fc2.bias", (hidden,), std=0.05)
    yield from _decoder_layers("talker.model", sizes)
    std, end = _head_std(hidden), widths.steering(_STEERING_IDS)["codec_eos_token_id"]
    yield Weight("talker.codec_head.weight", (ids, hidden), std=std, row=end, factor=widths.end_scale)


def _code_predictor(widths: Size) -> Iterator[Weight]:
    hidden, width = widths.talker["hidden_size"], widths.predictor["hidden_size"]
    at = "talker.code_predictor"
    for codebook in range(widths.codebooks - 1):
        yield Weight(f"{at}.model.codec_embedding.{codebook}.weight", (widths.codes, hidden), std=0.25)
        yield Weight(f"{at}.lm_head.{codebook}.weight", (widths.codes, width), std=_head_std(width))
    if hidden != width:  # it takes in hidden states and embeddings of about that RMS
        yield Weight(f"{at}.small_to_mtp_projection.weight", (width, hidden), std=hidden**-0.5 / _HIDDEN_RMS)
        yield Weight(f"{at}.small_to_mtp_projection.bias", (width,), std=0.1)
    yield from _decoder_layers(f"{at}.model", widths.predictor)


def _decoder_layers(at: str, sizes: dict[str, Any]) -> Iterator[Weight]:
    """Hugging Face's names of a Qwen3 decoder's layers and last norm."""
    hidden, inner, head = sizes["hidden_size"], sizes["intermediate_size"], sizes["head_dim"]
    queries, keys = sizes["num_attention_heads"] * head, sizes["num_key_value_heads"] * head
    branch = 1 / math.sqrt(sizes["num_hidden_layers"])  # what each adds to the stream, so that the depth adds O(1)
    for layer in range(sizes["num_hidden_layers"]):
        name = f"{at}.layers.{layer}"
        yield Weight(f"{name}.input_layernorm.weight", (hidden,), mean=1.0)
        yield Weight(f"{name}.self_attn.q_proj.weight", (queries, hidden), std=hidden**-0.5)
        yield Weight(f"{name}.self_attn.k_proj.weight", (keys, hidden), std=hidden**-0.5)
        yield Weight(f"{name}.self_attn.v_proj.weight", (keys, hidden), std=hidden**-0.5)
        yield Weight(f"{name}.self_attn.o_proj.weight", (hidden, queries), std=2 * branch * queries**-0.5)
        yield Weight(f"{name}.self_attn.q_norm.weight", (head,), mean=1.5)  # sharper than random rows give
        yield Weight(f"{name}.self_attn.k_norm.weight", (head,), mean=1.5)
        yield Weight(f"{name}.post_attention_layernorm.weight", (hidden,), mean=1.0)
        yield Weight(f"{name}.mlp.gate_proj.weight", (inner, hidden), std=hidden**-0.5)
        yield Weight(f"{name}.mlp.up_proj.weight", (inner, hidden), std=hidden**-0.5)
        yield Weight(f"{name}.mlp.down_proj.weight", (hidden, inner), std=2 * branch * inner**-0.5)
    yield Weight(f"{at}.norm.weight", (hidden,), mean=_HIDDEN_RMS)


def _head_std(hidden: int) -> float:
    return _LOGIT_STD / (_HIDDEN_RMS * math.sqrt(hidden))


def _affine(name: str, shape: tuple[int, ...], gain: float = 1.0, bias: float = 0.02) -> Iterator[Weight]:
    """A linear or convolution layer whose output has `gain` times its input's RMS."""
    yield Weight(f"{name}.weight", shape, std=gain * math.prod(shape[1:]) ** -0.5)
    yield Weight(f"{name}.bias", (shape[0],), std=bias)


def _speaker_encoder(stated: dict[str, Any]) -> Iterator[Weight]:
    """An ECAPA-TDNN. Log mels are far from zero, so the first layer is kept small."""
    sizes = config.speaker_encoder_config(stated)
    channels, kernels = sizes.enc_channels, sizes.enc_kernel_sizes
    at = "speaker_encoder"
    yield from _affine(f"{at}.blocks.0.conv", (channels[0], sizes.mel_dim, kernels[0]), gain=0.3)
    for block in range(1, len(channels) - 1):
        name, width = f"{at}.blocks.{block}", channels[block]
        part = width // sizes.enc_res2net_scale
        yield from _affine(f"{name}.tdnn1.conv", (width, channels[block - 1], 1), gain=1.4)
        for index in range(sizes.enc_res2net_scale - 1):
            yield from _affine(f"{name}.res2net_block.blocks.{index}.conv", (part, part, kernels[block]))
        yield from _affine(f"{name}.tdnn2.conv", (width, width, 1), gain=1.4)
        yield from _affine(f"{name}.se_block.conv1", (sizes.enc_se_channels, width, 1))
        yield from _affine(f"{name}.se_block.conv2", (width, sizes.enc_se_channels, 1))
    last = channels[-1]
    yield from _affine(f"{at}.mfa.conv", (last, sum(channels[1:-1]), kernels[-1]), gain=0.7)
    yield from _affine(f"{at}.asp.tdnn.conv", (sizes.enc_attention_channels, 3 * last, 1))
    yield from _affine(f"{at}.asp.conv", (last, sizes.enc_attention_channels, 1))
    yield from _affine(f"{at}.fc", (sizes.enc_dim, 2 * last, 1), gain=0.3)


def _decoder(widths: Size) -> Iterator[Weight]:
    """Code2Wav: codebooks, a transformer, and convolutions that bring a frame to 1,920 samples."""
    sizes, latent = widths.decoder, widths.decoder["latent_dim"]
    yield from _codebooks(widths)
    yield from _affine("decoder.pre_conv.conv", (latent, sizes["codebook_dim"], 3))
    yield from _pre_transformer(sizes)
    for index, ratio in enumerate(_LATENT_RATIOS):
        at = f"decoder.upsample.{index}"
        yield Weight(f"{at}.0.conv.weight", (latent, latent, ratio), std=latent**-0.5)
        yield Weight(f"{at}.0.conv.bias", (latent,), std=0.02)
        yield from _convnext(f"{at}.1", latent)
    width = sizes["decoder_dim"]
    yield from _affine("decoder.decoder.0.conv", (width, latent, 7), gain=_DECODER_GAIN)
    for index, rate in enumerate(_DECODER_RATES):
        yield from _upsampling_block(f"decoder.decoder.{index + 1}.block", width, rate)
        width //= 2
    last = len(_DECODER_RATES) + 1
    yield from _snake(f"decoder.decoder.{last}", width)
    yield from _affine(f"decoder.decoder.{last + 1}.conv", (1, width, 7), gain=_SOUND_GAIN)


_DECODER_GAIN = 1.0
_SOUND_GAIN = 0.12


def _codebooks(widths: Size) -> Iterator[Weight]:
    """The first codebook and the sum of the others weigh alike; entries are stored as sums over their usage."""
    whole = widths.decoder["codebook_dim"]
    width = whole // 2
    for half, books in (("rvq_first", 1), ("rvq_rest", widths.codebooks - 1)):
        at = f"decoder.quantizer.{half}"
        for book in range(books):
            name = f"{at}.vq.layers.{book}._codebook"
            yield Weight(f"{name}.cluster_usage", (widths.codes,), std=0.2, mean=2.0)
            yield Weight(f"{name}.embedding_sum", (widths.codes, width), std=2 / math.sqrt(books))
        yield Weight(f"{at}.input_proj.weight", (width, whole, 1), std=whole**-0.5)
        yield Weight(f"{at}.output_proj.weight", (whole, width, 1), std=(2 * width) ** -0.5)


def _pre_transformer(sizes: dict[str, Any]) -> Iterator[Weight]:
    hidden, latent, inner = sizes["hidden_size"], sizes["latent_dim"], sizes["intermediate_size"]
    queries = sizes["num_attention_heads"] * sizes["head_dim"]
    keys = sizes["num_key_value_heads"] * sizes["head_dim"]
    branch = 1 / math.sqrt(sizes["num_hidden_layers"])
    at = "decoder.pre_transformer"
    yield from _affine(f"{at}.input_proj", (hidden, latent))
    for layer in range(sizes["num_hidden_layers"]):
        name = f"{at}.layers.{layer}"
        yield Weight(f"{name}.input_layernorm.weight", (hidden,), mean=1.0)
        yield Weight(f"{name}.self_attn.q_proj.weight", (queries, hidden), std=1.5 * hidden**-0.5)
        yield Weight(f"{name}.self_attn.k_proj.weight", (keys, hidden), std=1.5 * hidden**-0.5)
        yield Weight(f"{name}.self_attn.v_proj.weight", (keys, hidden), std=hidden**-0.5)
        yield Weight(f"{name}.self_attn.o_proj.weight", (hidden, queries), std=2 * queries**-0.5)
        yield Weight(f"{name}.self_attn_layer_scale.scale", (hidden,), std=0.1 * branch, mean=branch)
        yield Weight(f"{name}.post_attention_layernorm.weight", (hidden,), mean=1.0)
        yield Weight(f"{name}.mlp.gate_proj.weight", (inner, hidden), std=hidden**-0.5)
        yield Weight(f"{name}.mlp.up_proj.weight", (inner, hidden), std=hidden**-0.5)
        yield Weight(f"{name}.mlp.down_proj.weight", (hidden, inner), std=2 * inner**-0.5)
        yield Weight(f"{name}.mlp_layer_scale.scale", (hidden,), std=0.1 * branch, mean=branch)
    yield Weight(f"{at}.norm.weight", (hidden,), mean=1.0)
    yield from _affine(f"{at}.output_proj", (latent, hidden))


def _convnext(at: str, width: int) -> Iterator[Weight]:
    yield from _affine(f"{at}.dwconv.conv", (width, 1, 7))
    yield Weight(f"{at}.norm.weight", (width,), mean=1.0)
    yield Weight(f"{at}.norm.bias", (width,), std=0.02)
    yield from _affine(f"{at}.pwconv1", (4 * width, width))
    yield from _affine(f"{at}.pwconv2", (width, 4 * width), gain=1.5)
    yield Weight(f"{at}.gamma", (width,), std=0.05, mean=0.5)


def _upsampling_block(at: str, width: int, rate: int) -> Iterator[Weight]:
    """Each output of its transposed convolution sees two taps of `width` channels."""
    out = width // 2
    yield from _snake(f"{at}.0", width)
    yield Weight(f"{at}.1.conv.weight", (width, out, 2 * rate), std=0.7 * (2 * width) ** -0.5)
    yield Weight(f"{at}.1.conv.bias", (out,), std=0.02)
    for unit in (2, 3, 4):
        yield from _snake(f"{at}.{unit}.act1", out)
        yield from _affine(f"{at}.{unit}.conv1.conv", (out, out, 7))
        yield from _snake(f"{at}.{unit}.act2", out)
        yield from _affine(f"{at}.{unit}.conv2.conv", (out, out, 1), gain=0.3)


def _snake(at: str, width: int) -> Iterator[Weight]:
    """Logarithms of frequency and of the magnitude's inverse."""
    yield Weight(f"{at}.alpha", (width,), std=0.1)
    yield Weight(f"{at}.beta", (width,), std=0.1)


def _encoder(widths: Size) -> Iterator[Weight]:
    """The encoder of reference audio, in the layout of Hugging Face's Mimi."""
    sizes = widths.encoder
    hidden, width = sizes["hidden_size"], sizes["num_filters"]
    at = "encoder.encoder.layers"
    yield from _affine(f"{at}.0.conv", (width, 1, 7), gain=3.0)  # speech has an RMS of about 0.1
    layer = 1
    for ratio in reversed(_ENCODER_RATIOS):
        yield from _affine(f"{at}.{layer}.block.1.conv", (width // 2, width, 3), gain=1.3)
        yield from _affine(f"{at}.{layer}.block.3.conv", (width, width // 2, 1), gain=0.5)
        yield from _affine(f"{at}.{layer + 2}.conv", (2 * width, width, 2 * ratio), gain=1.3)
        width *= 2
        layer += 3
    yield from _affine(f"{at}.{layer + 1}.conv", (hidden, width, 3), gain=1.3)
    yield from _encoder_transformer(sizes)
    yield Weight("encoder.downsample.conv.weight", (hidden, hidden, 4), std=(4 * hidden) ** -0.5)
    yield from _encoder_codebooks(sizes, widths.codes)


def _encoder_transformer(sizes: dict[str, Any]) -> Iterator[Weight]:
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    queries = sizes["num_attention_heads"] * sizes["head_dim"]
    keys = sizes["num_key_value_heads"] * sizes["head_dim"]
    branch = 0.3 / math.sqrt(sizes["num_hidden_layers"])
    for layer in range(sizes["num_hidden_layers"]):
        name = f"encoder.encoder_transformer.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield Weight(f"{name}.{norm}.weight", (hidden,), mean=1.0)
            yield Weight(f"{name}.{norm}.bias", (hidden,), std=0.02)
        yield Weight(f"{name}.self_attn.q_proj.weight", (queries, hidden), std=1.5 * hidden**-0.5)
        yield Weight(f"{name}.self_attn.k_proj.weight", (keys, hidden), std=1.5 * hidden**-0.5)
        yield Weight(f"{name}.self_attn.v_proj.weight", (keys, hidden), std=hidden**-0.5)
        yield Weight(f"{name}.self_attn.o_proj.weight", (hidden, queries), std=2 * queries**-0.5)
        yield Weight(f"{name}.self_attn_layer_scale.scale", (hidden,), std=0.1 * branch, mean=branch)
        yield Weight(f"{name}.mlp.fc1.weight", (inner, hidden), std=hidden**-0.5)
        yield Weight(f"{name}.mlp.fc2.weight", (hidden, inner), std=1.5 * inner**-0.5)
        yield Weight(f"{name}.mlp_layer_scale.scale", (hidden,), std=0.1 * branch, mean=branch)


def _encoder_codebooks(sizes: dict[str, Any], codes: int) -> Iterator[Weight]:
    """Residual books: each has to hold what the ones before it leave, of which the first one takes the least."""
    hidden, width = sizes["hidden_size"], sizes["vector_quantization_hidden_dimension"]
    book_width = sizes["codebook_dim"]
    for half, books in (("semantic", 1), ("acoustic", _ENCODER_CODEBOOKS - 1)):
        at = f"encoder.quantizer.{half}_residual_vector_quantizer"
        yield Weight(f"{at}.input_proj.weight", (width, hidden, 1), std=hidden**-0.5)
        yield Weight(f"{at}.output_proj.weight", (hidden, width, 1), std=width**-0.5)
        for book in range(books):
            name = f"{at}.layers.{book}.codebook"
            yield Weight(f"{name}.initialized", (1,), mean=1.0)
            yield Weight(f"{name}.cluster_usage", (codes,), std=0.2, mean=2.0)
            yield Weight(f"{name}.embed_sum", (codes, book_width), std=0.8 * 0.9**book)
