"""Random checkpoints in the published format, for tests, demos and measurements.

Every tensor is drawn by itself, from the seed and its name, and shards are written one at a time: the true size never
stands in memory whole. Scales are chosen by how variance travels through each layer, so that every stage puts out an
RMS between 0.05 and 0.5, logits have a standard deviation near 2.5, and songs end by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from workers.models.minimax_music3 import config
from workers.models.random_weights import Weight, check_new, write_json, write_shards

if TYPE_CHECKING:
    from workers.models.minimax_music3.acoustic import Component

_LOGIT_STD = 2.5
_HIDDEN_RMS = 0.3  # of the two language models' hidden states: their last norm's weight


@dataclass(frozen=True, slots=True)
class Size:
    """The widths of a checkpoint: the configs of its components, and the dtype that the language models are kept in."""

    language_model: dict[str, Any]
    depth_decoder: dict[str, Any]
    condition_encoder: dict[str, Any]
    transformer: dict[str, Any]
    vocoder: dict[str, Any]
    dtype: torch.dtype
    end_scale: float  # of <|audio_end|>'s row of the head: one frame in 400 or so then ends the song


_TINY = Size(
    language_model={
        "vocab_size": 168_064,
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,  # the least that vLLM has on the CPU
    },
    depth_decoder={"hidden_size": 64, "num_layers": 2, "num_attention_heads": 4, "intermediate_size": 128},
    condition_encoder={"condition_hidden_dim": 64, "out_dim": 32},
    transformer={
        "in_channels": 16,
        "condition_dim": 32,
        "num_layers": 2,
        "num_attention_heads": 1,
        "attention_head_dim": 32,
        "ff_inner_dim": 64,
        "rotary_dim": 16,
        "fourier_embedding_dim": 32,
    },
    vocoder={"latent_channels": 16, "decoder_input_dim": 32, "decoder_hidden_dim": 32},
    dtype=torch.float32,
    end_scale=1.8,
)

# The modules' defaults are the published widths.
_TRUE = Size(
    language_model={
        "vocab_size": 200_064,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    depth_decoder={},
    condition_encoder={},
    transformer={},
    vocoder={},
    dtype=torch.bfloat16,
    end_scale=1.45,
)


SIZES = {"tiny": _TINY, "true": _TRUE}


def make_checkpoint(folder: Path, size: str, seed: int, device: str = "cpu") -> None:
    """Write a random checkpoint into a folder, which may exist if it is empty.

    Args:
        folder: where to.
        size: "tiny" (under 120 MB, float32) or "true" (about 31 GB: the language models bfloat16, the rest float32).
        seed: another seed, another checkpoint.
        device: what draws the numbers; their bits depend on its kind.

    Raises:
        ValueError: no such size.
        FileExistsError: the folder holds something.
    """
    check_new(folder, size, SIZES)
    widths = SIZES[size]
    on = torch.device(device)

    _write_language_model(folder / config.LANGUAGE_MODEL, widths, seed, on)
    for component, module, weights, dtype in (
        (config.DEPTH_DECODER, meta_module(config.DEPTH_DECODER, widths.depth_decoder), _depth_decoder, widths.dtype),
        (
            config.CONDITION_ENCODER,
            meta_module(config.CONDITION_ENCODER, widths.condition_encoder),
            _condition_encoder,
            None,
        ),
        (config.TRANSFORMER, meta_module(config.TRANSFORMER, widths.transformer), _transformer, None),
        (config.VOCODER, meta_module(config.VOCODER, widths.vocoder), _vocoder, None),
    ):
        module.save_config(folder / component)
        drawn = ((w.name, w.draw(component, seed, on).to(dtype or torch.float32)) for w in weights(module))
        write_shards(folder / component, "diffusion_pytorch_model", drawn)
    _write_scheduler(folder / config.SCHEDULER)
    _write_tokenizer(folder / config.TOKENIZER)
    _write_index(folder)


def meta_module(component: str, widths: dict[str, Any]) -> Component:
    """The diffusers module, without memory: for its config and its names and shapes."""
    from workers.models.minimax_music3.acoustic import module_class

    with torch.device("meta"):
        return module_class(component)(**widths)


def _shapes(module: torch.nn.Module) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, tensor in module.state_dict().items():
        yield name, tuple(tensor.shape)


def _fan_in(shape: tuple[int, ...]) -> int:
    return math.prod(shape[1:])


def language_model_weights(size: Size) -> Iterator[Weight]:
    """Hugging Face's names and shapes of a Qwen3ForCausalLM, untied."""
    widths = size.language_model
    hidden, vocabulary, layers = widths["hidden_size"], widths["vocab_size"], widths["num_hidden_layers"]
    head = widths["head_dim"]
    queries, keys = widths["num_attention_heads"] * head, widths["num_key_value_heads"] * head
    inner = widths["intermediate_size"]
    yield Weight("model.embed_tokens.weight", (vocabulary, hidden), std=1.0)
    for layer in range(layers):
        at = f"model.layers.{layer}"
        branch = 1 / math.sqrt(layers)  # what a branch may add to the residual stream, so that the depth adds O(1)
        yield Weight(f"{at}.input_layernorm.weight", (hidden,), mean=1.0)
        yield Weight(f"{at}.self_attn.q_proj.weight", (queries, hidden), std=hidden**-0.5)
        yield Weight(f"{at}.self_attn.k_proj.weight", (keys, hidden), std=hidden**-0.5)
        yield Weight(f"{at}.self_attn.v_proj.weight", (keys, hidden), std=hidden**-0.5)
        yield Weight(f"{at}.self_attn.o_proj.weight", (hidden, queries), std=2 * branch * queries**-0.5)
        yield Weight(f"{at}.self_attn.q_norm.weight", (head,), mean=1.5)  # sharper attention than random rows give
        yield Weight(f"{at}.self_attn.k_norm.weight", (head,), mean=1.5)
        yield Weight(f"{at}.post_attention_layernorm.weight", (hidden,), mean=1.0)
        yield Weight(f"{at}.mlp.gate_proj.weight", (inner, hidden), std=hidden**-0.5)
        yield Weight(f"{at}.mlp.up_proj.weight", (inner, hidden), std=hidden**-0.5)
        yield Weight(f"{at}.mlp.down_proj.weight", (hidden, inner), std=2 * branch * inner**-0.5)
    yield Weight("model.norm.weight", (hidden,), mean=_HIDDEN_RMS)
    head_std = _head_std(hidden)
    yield Weight("lm_head.weight", (vocabulary, hidden), std=head_std, row=config.AUDIO_END, factor=size.end_scale)


def _head_std(hidden: int) -> float:
    return _LOGIT_STD / (_HIDDEN_RMS * math.sqrt(hidden))


def _depth_decoder(module: Component) -> Iterator[Weight]:
    branch = 1 / math.sqrt(module.config["num_layers"])
    for name, shape in _shapes(module):
        if name in ("audio_embeddings.weight", "pos_embedding.weight"):
            yield Weight(name, shape, std=1.0)
        elif name.startswith("audio_heads."):
            yield Weight(name, shape, std=_head_std(shape[1]))
        elif name == "norm.weight":
            yield Weight(name, shape, mean=_HIDDEN_RMS)
        elif len(shape) == 1:
            yield Weight(name, shape, mean=1.0)
        elif name == "projection.weight":  # it takes in hidden states of that RMS, and embeddings
            yield Weight(name, shape, std=(_HIDDEN_RMS * shape[1]) ** -0.5)
        elif name.endswith(("to_out.weight", "down_proj.weight")):
            yield Weight(name, shape, std=2 * branch * shape[1] ** -0.5)
        else:
            yield Weight(name, shape, std=shape[1] ** -0.5)


def _condition_encoder(module: Component) -> Iterator[Weight]:
    """Mixing eight independent slices leaves 1/sqrt(8) of their RMS; the scale brings most of it back."""
    for name, shape in _shapes(module):
        if name == "layer_weight_logits":
            yield Weight(name, shape, std=0.5)
        elif name == "layer_scale":
            yield Weight(name, shape, mean=2.0)
        elif name == "proj.bias":
            yield Weight(name, shape, std=0.02)
        else:
            yield Weight(name, shape, std=1.5 * _fan_in(shape) ** -0.5)


def _transformer(module: Component) -> Iterator[Weight]:
    """A flow that shrinks: v = -1.8 x + f(x, t, condition), so that noise of RMS 1 becomes latents of RMS 0.3.

    The latents ride on the residual stream's first channels, where `proj_out` finds them.
    """
    branch = 1 / math.sqrt(module.config["num_layers"])
    for name, shape in _shapes(module):
        if name == "time_proj.weight":
            yield Weight(name, shape, std=1.0)
        elif ".norm" in name:
            yield Weight(name, shape, mean=1.0 if name.endswith("weight") else 0.0)
        elif name.endswith("bias"):
            yield Weight(name, shape, std=0.02)
        elif name == "proj_in.weight":
            yield Weight(name, shape, std=2 * shape[1] ** -0.5, eye=4.0)
        elif name == "proj_out.weight":
            yield Weight(name, shape, std=0.12 * shape[1] ** -0.5, eye=-0.45)
        elif name in ("preprocess_conv.weight", "postprocess_conv.weight"):
            yield Weight(name, shape, std=0.1 * shape[1] ** -0.5)
        elif name.endswith(("to_out.0.weight", "ff_out.weight")):
            yield Weight(name, shape, std=branch * shape[1] ** -0.5)
        else:
            yield Weight(name, shape, std=shape[1] ** -0.5)


def _vocoder(module: Component) -> Iterator[Weight]:
    """Weight-normed: `weight_v` is only a direction, `weight_g` the gain of an output channel.

    Of a transposed convolution it is that of an input channel: each output sees two taps of twice as many channels.
    """
    for name, shape in _shapes(module):
        if name.endswith("alpha"):
            yield Weight(name, shape, mean=1.0)
        elif name.endswith("bias"):
            yield Weight(name, shape)
        elif name.endswith("conv_t1.weight_g"):
            block = int(name.split(".")[1])
            yield Weight(name, shape, mean=math.sqrt(module.config["upsampling_ratios"][block] / 2))
        elif name.endswith("conv2.weight_g"):
            yield Weight(name, shape, mean=0.3)
        elif name == "conv_out.weight_g":
            yield Weight(name, shape, mean=0.05)
        elif name.endswith("weight_g"):
            yield Weight(name, shape, mean=1.0)
        elif name == "dec_in_proj.weight":
            yield Weight(name, shape, std=3 * shape[1] ** -0.5)
        else:
            yield Weight(name, shape, std=_fan_in(shape) ** -0.5)


def _write_language_model(folder: Path, widths: Size, seed: int, device: torch.device) -> None:
    stated = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **widths.language_model,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 151_643,
        "eos_token_id": config.AUDIO_END,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": config.CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1_000_000,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": str(widths.dtype).removeprefix("torch."),
        "use_cache": True,
        "use_sliding_window": False,
    }
    write_json(folder / "config.json", stated)
    weights = language_model_weights(widths)
    write_shards(
        folder, "model", ((w.name, w.draw(config.LANGUAGE_MODEL, seed, device).to(widths.dtype)) for w in weights)
    )


def _write_scheduler(folder: Path) -> None:
    from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler

    FlowMatchEulerDiscreteScheduler(num_train_timesteps=1, invert_sigmas=True).save_config(folder)


def _write_tokenizer(folder: Path) -> None:
    from workers.models.minimax_music3.tokenizer import write_tokenizer

    write_tokenizer(folder)


def _write_index(folder: Path) -> None:
    """What the folder holds, for diffusers' modular pipelines and for whoever asks a config for its model type."""
    kinds = {
        config.TOKENIZER: ("transformers", "Qwen2Tokenizer"),
        config.LANGUAGE_MODEL: ("transformers", "Qwen3ForCausalLM"),
        config.DEPTH_DECODER: ("diffusers", "MiniMaxMusic3RVQDepthDecoder"),
        config.CONDITION_ENCODER: ("diffusers", "MiniMaxMusic3ConditionEncoder"),
        config.TRANSFORMER: ("diffusers", "MiniMaxMusic3Transformer1DModel"),
        config.SCHEDULER: ("diffusers", "FlowMatchEulerDiscreteScheduler"),
        config.VOCODER: ("diffusers", "MiniMaxMusic3Vocoder"),
    }
    index: dict[str, Any] = {"_class_name": "MiniMaxMusic3ModularPipeline", "_blocks_class_name": "MiniMaxMusic3Blocks"}
    for component, kind in kinds.items():
        where = {"pretrained_model_name_or_path": None, "revision": None, "subfolder": component, "variant": None}
        index[component] = [*kind, {**where, "type_hint": list(kind)}]
    write_json(folder / "modular_model_index.json", index)
    write_json(folder / "config.json", {"model_type": config.MODEL, "architectures": ["MiniMaxMusic3ModularPipeline"]})
