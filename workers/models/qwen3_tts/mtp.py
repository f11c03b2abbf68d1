"""Multi-token prediction within a step: the residual codes of a frame, right after its first code is drawn.

There is no deferred path: a step that draws a frame draws all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from workers.models.family import Drawing
from workers.models.fusing import fused
from workers.models.qwen3_tts.code_predictor import CodePredictor
from workers.models.qwen3_tts.sampling import Sampling
from workers.talker.sampling import draw_keys, noise_of_all


class MTPState:
    """The predictor, its buffers, and each request's way of drawing. `post_sample` is the only way in.

    Nothing in the buffers outlives a step but the requests' parameters.

    Args:
        predictor: fused.
        first_codes: (codes, width), the embeddings of the first codebook.
        jobs: job slots; every step is computed for all of them, whoever draws.
    """

    def __init__(self, predictor: CodePredictor, first_codes: Tensor, jobs: int) -> None:
        self._predictor = predictor
        self._first_codes = predictor.project_table(first_codes)
        self._sampling = Sampling(jobs, first_codes.device)
        self._cache = predictor.new_cache(jobs)
        self._draw = self._sampling.draw
        self._noise_of_all = noise_of_all
        self._jobs = jobs

    def compile(self) -> None:
        """Have torch.compile fuse the small kernels, in pieces that recur: the whole of it would take minutes."""
        self._predictor.compile_layers()
        self._draw = fused(self._sampling.draw)
        self._noise_of_all = fused(noise_of_all)

    def bind(self, slot: int, params: Mapping[str, Any]) -> None:
        """Take over a slot for a request. Raises ValueError for a parameter that is out of its range."""
        self._sampling.bind(
            slot,
            do_sample=params["do_sample"],
            temperature=params["subtalker_temperature"],
            top_k=params["subtalker_top_k"],
            top_p=params["subtalker_top_p"],
        )

    def post_sample(self, hidden: Tensor | None, codes: Tensor, drawing: Drawing) -> None:
        """Draw the residual codes of the slots that drew a first code; no other slot's codes are touched.

        Args:
            hidden: (jobs, width), the talker's hidden states that the first codes were drawn from; None where no slot
                draws.
            codes: (jobs, codebooks) int64, the first ones drawn. The residual ones are filled in.

        Raises:
            ValueError: hidden states or codes are not one a slot: they are another step's.
        """
        slots, predictor = drawing.slots, self._predictor
        if not slots.numel():
            return
        if hidden is None or hidden.shape[0] != self._jobs or codes.shape != (self._jobs, predictor.codebooks):
            given = None if hidden is None else tuple(hidden.shape)
            raise ValueError(
                f"hidden states {given} and codes {tuple(codes.shape)}: a step has one of each for {self._jobs} slots"
            )
        positions = torch.arange(1, predictor.codebooks, device=codes.device)
        keys = draw_keys(drawing.seeds[:, None], drawing.draws[:, None] * predictor.codebooks + positions)
        noise = self._noise_of_all(keys, predictor.codes)
        inputs = torch.stack((predictor.project(hidden), self._first_codes[codes[:, 0]]), dim=1)
        self._cache.zero_()  # positions to come weigh nothing, but a number that is none would not
        start = 0
        for codebook in range(1, predictor.codebooks):
            state = predictor(inputs, self._cache, start)
            start += inputs.shape[1]
            logits = predictor.lm_head[codebook - 1](state)[slots].float()
            of_codebook = None if noise is None else noise[:, codebook - 1]
            take(codes, codebook, self._draw(logits, slots, keys[:, codebook - 1], of_codebook), drawing)
            inputs = predictor.embed_input(codes[:, codebook], codebook)[:, None]


def take(codes: Tensor, codebook: int, drawn: Tensor, drawing: Drawing) -> None:
    """Fill in what the slots of `drawing` drew, (n,) int64, where they do not repeat a draw."""
    if drawing.repeats is not None:
        drawn = torch.where(drawing.repeats, codes[drawing.slots, codebook], drawn)
    codes[drawing.slots, codebook] = drawn


def refuse_settings(settings: Mapping[str, Any]) -> None:
    """Raises ValueError for an engine's settings under which a step is not one whole frame, saying what to set."""
    for name, remedy in (
        ("sampled_tokens", "a step draws one frame a row, since each frame's embedding is the next one's input"),
        ("pipeline_parallel_size", "the predictor needs the newest hidden states and the embeddings in one process"),
    ):
        if settings.get(name, 1) != 1:
            raise ValueError(f"{name}={settings[name]}: {remedy}; set {name}=1")
    if settings.get("speculative_config") is not None:
        raise ValueError("speculative_config: a frame is drawn, never guessed; leave it out")
