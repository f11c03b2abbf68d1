"""The talker: prompts, frame feedback, and the draw of a frame's eight codes with their conditioning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from broker_schemas.events import JobRequested
from workers.checkpoints import CheckpointError, fill_module, load_component, load_tensors
from workers.models.family import Drawing, Draws, EmbedTokens, Reference
from workers.models.fusing import fused
from workers.models.minimax_music3 import config
from workers.models.minimax_music3.depth_decoder import DepthDecoder
from workers.models.minimax_music3.prompt import build_prompt, unconditional
from workers.models.minimax_music3.tokenizer import encode, load_tokenizer
from workers.runners.torch_qwen3 import Qwen3, Qwen3Config
from workers.talker.sampling import draw_keys, draw_top_k, guide, most_likely, noise_of_all

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_OPTIONS = frozenset({"device", "dtype", "max_jobs"})


class MusicTalker:
    """Implements `workers.models.family.TalkerModel`. Row 0 of a job is the conditional one, row 1 its twin.

    Args:
        backbone: the language model without its head; None where an engine runs it.
        embed_tokens: its embedding table.
        head: (at least 1 + 16384, hidden), the head's rows of <|audio_end|> and of the codes.
        mix: (8,) float32, the weight of each slice of a frame's hidden states in its conditioning.
    """

    rows = config.ROWS
    codebooks = config.CODEBOOKS
    lead = config.LEAD

    def __init__(
        self,
        backbone: Qwen3 | None,
        embed_tokens: EmbedTokens,
        head: Tensor,
        depth: DepthDecoder,
        mix: Tensor,
        tokenizer: Tokenizer,
        context: int,
    ) -> None:
        self.context = context
        self._backbone = backbone
        self._embed_tokens = embed_tokens
        self._head = head
        self._depth = depth
        self._mix = mix.tolist()
        self._tokenizer = tokenizer
        self._prompts: dict[int, Tensor] = {}  # by slot, (rows, tokens)
        self._drawn = self._draw

    @property
    def backbone(self) -> Qwen3:
        if self._backbone is None:
            raise LookupError("the backbone is the engine's")
        return self._backbone

    @property
    def depth(self) -> DepthDecoder:
        return self._depth

    def prompts(
        self, request: JobRequested, reference: Reference | None = None, context: np.ndarray | None = None
    ) -> list[list[int]]:
        """Token ids of the conditional and the unconditional row."""
        ids = encode(self._tokenizer, build_prompt(request.params["instructions"], request.input))
        return [ids, unconditional(ids)]

    def max_frames(self, request: JobRequested) -> int:
        return request.params["max_new_tokens"]

    def bind(
        self,
        slot: int,
        request: JobRequested,
        prompts: list[list[int]],
        reference: Reference | None = None,
        context: np.ndarray | None = None,
    ) -> None:
        self._prompts[slot] = torch.tensor(prompts, device=self._head.device)

    def embed_prompt(self, slot: int, row: int, start: int, end: int) -> Tensor:
        return self._embed_tokens(self._prompts[slot][row, start:end])

    def feedback(self, codes: Tensor, slots: Tensor, draws: Tensor) -> Tensor:
        """(n, 8) int64 -> (n, hidden): the sum of the codes' embeddings, over the root of their number.

        The residual codes' are added one after the other, since the order of a reduction may depend on its shape.
        """
        semantic = self._embed_semantic(codes[:, 0])
        residual = self._depth.embed(codes[:, 1], 1).float()
        for codebook in range(2, config.CODEBOOKS):
            residual += self._depth.embed(codes[:, codebook], codebook)
        return (semantic + residual.to(semantic.dtype)) * config.CODEBOOKS**-0.5

    def compile_draw(self) -> None:
        """See TalkerModel."""
        self._drawn = fused(self._draw)

    def draw(self, hidden: Tensor, codes: Tensor, drawing: Drawing) -> Draws:
        """See TalkerModel. The depth decoder runs only where a job draws, or wants conditioning."""
        return self._drawn(hidden, codes, drawing)

    def _draw(self, hidden: Tensor, codes: Tensor, drawing: Drawing) -> Draws:
        ended = torch.zeros(len(codes), dtype=torch.bool, device=hidden.device)
        positions = drawing.draws[:, None] * config.CODEBOOKS + torch.arange(config.CODEBOOKS, device=hidden.device)
        keys = draw_keys(drawing.seeds[:, None], positions)
        if drawing.slots.numel():
            candidates = self._draw_semantic(hidden, drawing.slots, keys[:, 0])
            ends = candidates == 0
            ended[drawing.slots] = ends if drawing.repeats is None else ends & ~drawing.repeats
            _take(codes, 0, (candidates - 1).clamp_min_(0), drawing)
        if drawing.slots.numel() or drawing.conditioning:
            conditioning = self._draw_residual(hidden, codes, drawing, keys)
        else:
            conditioning = torch.zeros(hidden.shape[1:], dtype=torch.float32, device=hidden.device)
        return Draws(codes, ended, conditioning)

    def _draw_semantic(self, hidden: Tensor, slots: Tensor, keys: Tensor) -> Tensor:
        """(drawing,) int64: 0 is the end, 1 + code the codes."""
        logits = F.linear(hidden.flatten(0, 1), self._head).view(*hidden.shape[:2], -1)
        conditional, other = logits[:, slots, : 1 + config.SEMANTIC_CODES].float()
        values, candidates = most_likely(conditional, config.TOP_K)
        guided = guide(values, other.gather(-1, candidates), config.GUIDANCE)
        return draw_top_k(guided, keys, config.TOP_K, candidates)

    def _draw_residual(self, hidden: Tensor, codes: Tensor, drawing: Drawing, keys: Tensor) -> Tensor:
        """Fill in c1..c7 of the jobs that draw; the conditioning of all, (jobs, hidden) float32."""
        rows, jobs, _ = hidden.shape
        depth, slots = self._depth, drawing.slots
        cache = depth.new_cache(rows * jobs)
        noise = noise_of_all(keys[:, 1:], depth.codes)
        semantic = depth.projection(self._embed_semantic(codes[:, 0])).expand_as(hidden)
        projected = torch.stack((depth.projection(hidden.flatten(0, 1)).view_as(hidden), semantic), dim=2).flatten(0, 1)
        conditioning = hidden[0].float() * self._mix[0]
        start = 0
        for codebook in range(1, config.CODEBOOKS):
            state = depth(projected, cache, start).view_as(hidden)
            start += projected.shape[1]
            conditioning.add_(state[0].float() * self._mix[codebook])
            if slots.numel():
                logits = depth.audio_heads[codebook - 1](state.flatten(0, 1)).view(rows, jobs, -1)
                conditional, other = logits[:, slots].float()
                guided = guide(conditional, other, config.GUIDANCE)
                drawn = draw_top_k(
                    guided, keys[:, codebook], config.TOP_K, noise=None if noise is None else noise[:, codebook - 1]
                )
                _take(codes, codebook, drawn, drawing)
            if codebook < config.CODEBOOKS - 1:
                embedded = depth.projection(depth.embed(codes[:, codebook], codebook))
                projected = embedded.repeat(rows, 1).unsqueeze(1)
        return conditioning

    def _embed_semantic(self, codes: Tensor) -> Tensor:
        return self._embed_tokens(codes + config.CODE_OFFSET)


def _take(codes: Tensor, codebook: int, drawn: Tensor, drawing: Drawing) -> None:
    """Fill in what was drawn, where a job does not repeat."""
    if drawing.repeats is not None:
        drawn = torch.where(drawing.repeats, codes[drawing.slots, codebook], drawn)
    codes[drawing.slots, codebook] = drawn


def load_talker(folder: Path, settings: dict[str, Any], embed_tokens: EmbedTokens | None = None) -> MusicTalker:
    """The talker of a checkpoint.

    Args:
        embed_tokens: the embedding table of an engine that runs the backbone; without one, the backbone is loaded.
        settings: `device` (default "cpu") and `dtype` ("float32" or "bfloat16"; default float32 on the CPU, else as
            stored).

    Raises:
        CheckpointError, ConfigError, UnsupportedConfig: the checkpoint is not one of this family, or not whole.
        ValueError: a setting is unknown.
    """
    if unknown := settings.keys() - _OPTIONS:
        raise ValueError(f"unknown talker option {sorted(unknown)[0]!r}; there are: device, dtype")
    device = torch.device(settings.get("device", "cpu"))
    asked = settings.get("dtype", "float32" if device.type == "cpu" else None)
    if asked is not None and asked not in _DTYPES:
        raise ValueError(f"talker dtype {asked!r}: use {' or '.join(_DTYPES)}")
    dtype = None if asked is None else _DTYPES[asked]
    stated = _language_model_config(folder)
    backbone = None
    if embed_tokens is None:
        backbone, head = _load_language_model(folder, stated, device, dtype)
        embed_tokens = backbone.embed_tokens
    else:
        name = _head_name(stated)
        head = _head_rows(load_tensors(folder, config.LANGUAGE_MODEL, {name}), stated).to(device, dtype)
    depth = _load_depth_decoder(folder, device, dtype)
    if depth.hidden_size != stated.hidden_size:
        raise CheckpointError(
            f"{config.DEPTH_DECODER} is {depth.hidden_size} wide, {config.LANGUAGE_MODEL} {stated.hidden_size}"
        )
    tokenizer = load_tokenizer(folder / config.TOKENIZER)
    return MusicTalker(backbone, embed_tokens, head, depth, _load_mix(folder), tokenizer, config.context(folder))


def _load(folder: Path, component: str, device: torch.device, dtype: torch.dtype | None) -> dict[str, Tensor]:
    return {name: tensor.to(device, dtype) for name, tensor in load_component(folder, component).items()}


def _language_model_config(folder: Path) -> Qwen3Config:
    stated = Qwen3Config.from_json(config.component_config(folder, config.LANGUAGE_MODEL))
    if stated.vocab_size < config.MIN_VOCABULARY:
        raise config.ConfigError(
            f"{config.LANGUAGE_MODEL} has {stated.vocab_size} tokens; the codes alone end at {config.MIN_VOCABULARY}"
        )
    return stated


def _head_name(stated: Qwen3Config) -> str:
    return "model.embed_tokens.weight" if stated.tie_word_embeddings else "lm_head.weight"


def _head_rows(weights: dict[str, Tensor], stated: Qwen3Config) -> Tensor:
    """(16392, hidden): the head's rows of <|audio_end|> and of the codes, then zeros.

    Products are fast where the rows are a multiple of eight.
    """
    head = weights.get(_head_name(stated))
    if head is None or head.shape != (stated.vocab_size, stated.hidden_size):
        raise CheckpointError(
            f"{config.LANGUAGE_MODEL}: {_head_name(stated)} is missing, or not the shape that its config says"
        )
    rows = torch.cat((head[config.AUDIO_END, None], head[config.CODE_OFFSET : config.MIN_VOCABULARY]))
    return F.pad(rows, (0, 0, 0, -len(rows) % 8))


def _load_language_model(
    folder: Path, stated: Qwen3Config, device: torch.device, dtype: torch.dtype | None
) -> tuple[Qwen3, Tensor]:
    weights = _load(folder, config.LANGUAGE_MODEL, device, dtype)
    head = _head_rows(weights, stated)
    if not stated.tie_word_embeddings:
        del weights["lm_head.weight"]
    prefix = "model."
    if strange := [name for name in weights if not name.startswith(prefix)]:
        raise CheckpointError(f"the weights of {config.LANGUAGE_MODEL} do not fit its config: unexpected: {strange[0]}")
    with torch.device("meta"):
        backbone = Qwen3(stated)
    weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    fill_module(backbone, weights, config.LANGUAGE_MODEL)
    return backbone.fuse(), head


def _load_depth_decoder(folder: Path, device: torch.device, dtype: torch.dtype | None) -> DepthDecoder:
    stated = config.component_config(folder, config.DEPTH_DECODER)
    sizes = {name: value for name, value in stated.items() if not name.startswith("_")}
    try:
        with torch.device("meta"):
            depth = DepthDecoder(**sizes)
    except TypeError as error:
        raise config.ConfigError(f"{config.DEPTH_DECODER}/config.json: {error}") from error
    if (depth.codes, depth.codebooks) != (config.RESIDUAL_CODES, config.CODEBOOKS):
        found = f"{depth.codebooks} codebooks of {depth.codes} residual codes"
        wanted = f"{config.CODEBOOKS} of {config.RESIDUAL_CODES}"
        raise config.ConfigError(f"{config.DEPTH_DECODER} has {found}, not {wanted}")
    fill_module(depth, _load(folder, config.DEPTH_DECODER, device, dtype), config.DEPTH_DECODER)
    return depth.fuse()


def _load_mix(folder: Path) -> Tensor:
    """(8,) float32: what the condition encoder weighs a frame's slices by, its scale included."""
    weights = load_component(folder, config.CONDITION_ENCODER)
    try:
        logits, scale = weights["layer_weight_logits"].float(), weights["layer_scale"].float()
    except KeyError as missing:
        raise CheckpointError(f"the weights of {config.CONDITION_ENCODER} lack {missing}") from None
    if logits.shape != (config.CODEBOOKS,):
        raise CheckpointError(f"{config.CONDITION_ENCODER} mixes {len(logits)} slices, not {config.CODEBOOKS}")
    return torch.softmax(logits, dim=0) * scale
