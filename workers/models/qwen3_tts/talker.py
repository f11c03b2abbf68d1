"""The talker: the prompt's embeddings, frame feedback, and the draw of a frame's codes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from broker_schemas.events import JobRequested
from workers.checkpoints import CheckpointError, fill_module, load_tensors, stated_shapes
from workers.models.family import Drawing, Draws, EmbedTokens
from workers.models.fusing import fused
from workers.models.qwen3_tts import config
from workers.models.qwen3_tts.code_predictor import CodePredictor
from workers.models.qwen3_tts.mtp import MTPState, refuse_settings, take
from workers.models.qwen3_tts.prompt import NOTHING, Prompt, build_prompt, in_context, prompt_length
from workers.models.qwen3_tts.sampling import Sampling, penalise, seen_codes
from workers.models.qwen3_tts.tokenizer import load_tokenizer
from workers.runners.torch_qwen3 import Qwen3, Qwen3Config
from workers.runners.uploads import sent
from workers.talker.sampling import draw_keys, noise_of_all

if TYPE_CHECKING:
    from workers.models.family import Reference

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_OPTIONS = frozenset({"device", "dtype", "max_jobs"})
_ENGINE_OPTIONS = frozenset({"sampled_tokens", "pipeline_parallel_size", "speculative_config"})
_TEXT_AT_ONCE = 8192  # tokens whose embeddings are projected together when they are loaded


class SpeechTalker:
    """Implements `workers.models.family.TalkerModel`.

    What depends on a request lies in buffers by job slot, and is laid down anew, all of it, when the slot is bound.

    Args:
        backbone: the decoder; None where an engine runs it.
        text: (text tokens, hidden), the projected embeddings of the text vocabulary.
        codec: (codec tokens, hidden), the embeddings of the talker's own vocabulary.
        head: (codec tokens, hidden).
        predictor: fused.
        jobs: job slots.
    """

    rows = config.ROWS
    lead = config.LEAD

    def __init__(
        self,
        backbone: Qwen3 | None,
        *,
        text: Tensor,
        codec: Tensor,
        head: Tensor,
        predictor: CodePredictor,
        tokenizer: Tokenizer,
        stated: config.SpeechConfig,
        jobs: int,
    ) -> None:
        self.codebooks = stated.codebooks
        self.context = stated.talker.max_position_embeddings
        self.mtp = MTPState(predictor, codec, jobs)
        self._backbone = backbone
        self._text = text
        self._codec = codec
        self._head = head
        self._predictor = predictor
        self._tokenizer = tokenizer
        self._stated = stated
        self._end = stated.talker.codec_eos_token_id
        device = codec.device
        self._never = torch.arange(len(codec), device=device) >= stated.codes
        self._never[self._end] = False
        self._sampling = Sampling(jobs, device)
        self._penalty = torch.ones(jobs, dtype=torch.float32, device=device)
        self._prompts: dict[int, Tensor] = {}  # by slot, (positions, hidden)
        self._newest: tuple[JobRequested, int, Prompt] | None = None
        self._draw_first = self._first_drawn
        # The text token that is added to the feedback of each draw; the padding token once the text is used up.
        # One place more than there are draws, for slots that sit a step out.
        self._trailing = torch.full((jobs, self.context + 1), stated.tts_pad, dtype=torch.int64, device=device)

    @property
    def backbone(self) -> Qwen3:
        if self._backbone is None:
            raise LookupError("the backbone is the engine's")
        return self._backbone

    def max_frames(self, request: JobRequested) -> int:
        return request.params["max_new_tokens"]

    # --- what depends on the request ----------------------------------------------------------------------------------

    def prompts(
        self, request: JobRequested, reference: Reference | None = None, context: np.ndarray | None = None
    ) -> list[list[int]]:
        """One row of ids that say nothing but the prompt's length: its embeddings come from `embed_prompt`."""
        return [[0] * prompt_length(self._prompt(request, self._known(request, reference, context)))]

    def bind(
        self,
        slot: int,
        request: JobRequested,
        prompts: list[list[int]],
        reference: Reference | None = None,
        context: np.ndarray | None = None,
    ) -> None:
        """Take over a slot for a request, before anything else is asked for it.

        Args:
            reference: for a clone, what its recording became.
            context: (frames, codebooks) int16, for a passage that goes on from another: what was said before.

        Raises:
            ValueError: a sampling parameter is out of its range, or the request does not fit the checkpoint.
        """
        known, params = self._known(request, reference, context), request.params
        prompt = self._prompt(request, known)
        self._sampling.bind(
            slot,
            do_sample=params["do_sample"],
            temperature=params["temperature"],
            top_k=params["top_k"],
            top_p=params["top_p"],
        )
        self.mtp.bind(slot, params)
        self._penalty[slot].fill_(params["repetition_penalty"])
        self._prompts[slot] = self._embed(prompt, reference, known)
        self._trailing[slot].fill_(self._stated.tts_pad)
        trailing = prompt.trailing[: self.context]  # there is no draw beyond
        self._trailing[slot, : len(trailing)] = self._ids(trailing)

    def _prompt(self, request: JobRequested, known: list[np.ndarray]) -> Prompt:
        """Asked for twice in a row: for its length, and when the slot is bound."""
        frames = sum(len(codes) for codes in known)
        if self._newest is not None:
            of, of_frames, newest = self._newest
            if of is request and of_frames == frames:
                return newest
        prompt = build_prompt(self._stated, self._tokenizer, request.input, request.params, frames)
        self._newest = request, frames, prompt
        return prompt

    @staticmethod
    def _known(request: JobRequested, reference: Reference | None, context: np.ndarray | None) -> list[np.ndarray]:
        """The frames that the prompt ends with, (frames, codebooks) int16: those of an in-context clone come first."""
        if request.params["task_type"] == config.BASE and reference is None:
            raise ValueError("a clone needs its reference")
        known = [] if context is None else [context]
        if in_context(request.params):
            if reference is None or reference.codes is None:
                raise ValueError("an in-context clone needs its reference's codes")
            known.insert(0, reference.codes)
        return known

    # --- embeddings ---------------------------------------------------------------------------------------------------

    def embed_prompt(self, slot: int, row: int, start: int, end: int) -> Tensor:
        """(end - start, hidden): positions of the prompt of the request that the slot is bound to."""
        return self._prompts[slot][start:end]

    def _embed(self, prompt: Prompt, reference: Reference | None, known: list[np.ndarray]) -> Tensor:
        """(positions, hidden)."""
        embeds = F.embedding(self._ids(prompt.text), self._text)
        steered = [position for position, id_ in enumerate(prompt.codec) if id_ != NOTHING]
        codec = self._ids([prompt.codec[position] for position in steered])
        embeds[self._ids(steered)] += F.embedding(codec, self._codec)
        if prompt.speaker is not None:
            assert reference is not None  # `_known` has asked for it
            embeds[prompt.speaker] += sent(torch.tensor(reference.speaker), embeds.device).to(embeds)
        if prompt.frames:
            codes = sent(torch.from_numpy(np.concatenate(known).astype("int64")), embeds.device)
            embeds[prompt.frames.start : prompt.frames.stop] += self._embed_frames(codes)
        return embeds

    def _ids(self, ids: list[int]) -> Tensor:
        return sent(torch.tensor(ids, dtype=torch.int64), self._codec.device)

    def feedback(self, codes: Tensor, slots: Tensor, draws: Tensor) -> Tensor:
        """(n, codebooks) int64 -> (n, hidden): the codes' embeddings, and the text token that goes with the draw.

        They are added one after the other, since the order of a reduction may depend on its shape.
        """
        text = F.embedding(self._trailing[slots, draws], self._text)
        return self._embed_frames(codes) + text

    def _embed_frames(self, codes: Tensor) -> Tensor:
        """(n, codebooks) int64 -> (n, hidden)."""
        total = F.embedding(codes[:, 0], self._codec).float()
        for residual in self._predictor.embed(codes[:, 1:]).unbind(dim=1):
            total += residual
        return total.to(self._codec.dtype)

    # --- the draw -----------------------------------------------------------------------------------------------------

    def compile_draw(self) -> None:
        """See TalkerModel."""
        self._draw_first = fused(self._first_drawn)
        self.mtp.compile()

    def draw(self, hidden: Tensor, codes: Tensor, drawing: Drawing) -> Draws:
        """See TalkerModel. The acoustic stage needs the codes alone: there is no conditioning."""
        ended = torch.zeros(len(codes), dtype=torch.bool, device=codes.device)
        if drawing.slots.numel():
            drawn = self._draw_first(hidden[0], drawing)
            ends = drawn == self._end
            ended[drawing.slots] = ends if drawing.repeats is None else ends & ~drawing.repeats
            take(codes, 0, drawn.masked_fill(ends, 0), drawing)
            self.mtp.post_sample(hidden[0], codes, drawing)
        return Draws(codes, ended, torch.zeros(len(codes), 0, dtype=torch.float32, device=codes.device))

    def _first_drawn(self, hidden: Tensor, drawing: Drawing) -> Tensor:
        """(drawing,) int64 ids of the talker's vocabulary."""
        slots, draws = drawing.slots, drawing.draws
        logits = F.linear(hidden, self._head)[slots].float()  # for all slots, at the one shape
        seen = seen_codes(drawing.history[slots, :, 0], draws, logits.shape[-1])
        logits = penalise(logits, seen, self._penalty[slots]).masked_fill_(self._never, -torch.inf)
        logits[:, self._end].masked_fill_(draws < config.MIN_FRAMES, -torch.inf)
        keys = draw_keys(drawing.seeds, draws * self.codebooks)
        return self._sampling.draw(logits, slots, keys, noise_of_all(keys, logits.shape[-1]))


class _TextProjection(nn.Module):
    def __init__(self, text_size: int, size: int) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(text_size, text_size)
        self.linear_fc2 = nn.Linear(text_size, size)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(F.silu(self.linear_fc1(x)))


class Beside(nn.Module):
    """What the talker has beside its decoder, under the published names."""

    def __init__(self, stated: config.TalkerConfig, predictor: Qwen3Config, codebooks: int) -> None:
        super().__init__()
        self.codec_embedding = nn.Embedding(stated.vocab_size, stated.hidden_size)
        self.text_embedding = nn.Embedding(stated.text_vocab_size, stated.text_hidden_size)
        self.text_projection = _TextProjection(stated.text_hidden_size, stated.hidden_size)
        self.codec_head = nn.Linear(stated.hidden_size, stated.vocab_size, bias=False)
        self.code_predictor = CodePredictor(predictor, codebooks, stated.hidden_size)

    def projected_text(self) -> Tensor:
        """(text tokens, hidden)."""
        return torch.cat([self.text_projection(rows) for rows in self.text_embedding.weight.split(_TEXT_AT_ONCE)])


def load_talker(folder: Path, settings: dict[str, Any], embed_tokens: EmbedTokens | None = None) -> SpeechTalker:
    """The talker of a checkpoint.

    Args:
        embed_tokens: given by an engine that runs the backbone; without it, the backbone is loaded.
        settings: `max_jobs`, and `device` (default "cpu") and `dtype` ("float32" or "bfloat16"; default float32 on the
            CPU, else as stored). An engine says `sampled_tokens`, `pipeline_parallel_size` and `speculative_config`.

    Raises:
        CheckpointError, ConfigError, UnsupportedConfig: the checkpoint is not one of this family, or not whole.
        ValueError: a setting is unknown, or one that the talker does not work with.
    """
    if unknown := settings.keys() - _OPTIONS - _ENGINE_OPTIONS:
        raise ValueError(f"unknown talker option {sorted(unknown)[0]!r}; there are: {', '.join(sorted(_OPTIONS))}")
    refuse_settings(settings)
    device = torch.device(settings.get("device", "cpu"))
    asked = settings.get("dtype", "float32" if device.type == "cpu" else None)
    if asked is not None and asked not in _DTYPES:
        raise ValueError(f"talker dtype {asked!r}: use {' or '.join(_DTYPES)}")
    dtype = None if asked is None else _DTYPES[asked]
    stated, section = config.load_config(folder), config.talker_section(folder)
    decoder = Qwen3Config.from_json(section)
    with torch.device("meta"):
        backbone = Qwen3(decoder) if embed_tokens is None else None
        predictor = Qwen3Config.from_json(section["code_predictor_config"])
        beside = Beside(stated.talker, predictor, stated.codebooks)
    of_decoder, others = _weights(folder, device, dtype, decoder=backbone is not None)
    fill_module(beside, others, "the talker")
    if backbone is not None:
        fill_module(backbone, of_decoder | {"embed_tokens.weight": beside.codec_embedding.weight}, "the talker's model")
        backbone.fuse()
    return SpeechTalker(
        backbone,
        text=beside.projected_text(),
        codec=beside.codec_embedding.weight,
        head=beside.codec_head.weight,
        predictor=beside.code_predictor.fuse(),
        tokenizer=load_tokenizer(folder),
        stated=stated,
        jobs=settings["max_jobs"],
    )


def _weights(
    folder: Path, device: torch.device, dtype: torch.dtype | None, *, decoder: bool
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The decoder's layers and last norm, where they are wanted, and all else of the talker; prefixes taken off."""
    prefixes = (config.TALKER_PREFIX, config.SPEAKER_ENCODER_PREFIX)
    names = stated_shapes(folder, config.TOP).keys()
    if strange := sorted(name for name in names if not name.startswith(prefixes)):
        raise CheckpointError(f"the weights of {folder} do not fit its config: unexpected: {strange[0]}")
    layers = tuple(f"{config.TALKER_PREFIX}model.{name}." for name in ("layers", "norm"))
    wanted = [
        name for name in names if name.startswith(config.TALKER_PREFIX) and (decoder or not name.startswith(layers))
    ]
    of_decoder: dict[str, Tensor] = {}
    others: dict[str, Tensor] = {}
    for name, tensor in load_tensors(folder, config.TOP, wanted).items():
        within = name.removeprefix(config.TALKER_PREFIX)
        to = of_decoder if name.startswith(layers) else others
        # The published model keeps both embedding tables beside its layers.
        to[within.removeprefix("model.")] = tensor.to(device, dtype)
    return of_decoder, others
