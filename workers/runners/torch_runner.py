"""The torch runner: static key-value slots, one batched step for all rows.

A job's bits must not depend on who else is there, and on most devices a matrix product's bits depend on its number of
rows. So products run at one padded shape, whatever the load: all rows of the batch in a decode step, one chunk of fixed
length in a prefill. Attention goes job by job, at a shape that is the job's own. A prompt is cut into chunks by its
length alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workers.models.family import Drawing, Draws, TalkerModel
from workers.talker.frames import FrameHistory
from workers.talker.rows import RowSlots, fit, take_rows


@dataclass(slots=True)
class Song:
    """A job's place in the runner: what is in its rows."""

    history: FrameHistory
    slot: int
    prompt_tokens: int
    length: int = 0  # positions in the cache

    @property
    def prefilling(self) -> bool:
        return self.length < self.prompt_tokens


@dataclass(slots=True)
class KeyValues:
    """The slots of one layer: (jobs, rows, kv_heads, positions, head_dim) each."""

    keys: Tensor
    values: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.values = torch.empty_like(self.keys)


class TorchRunner:
    """Runs a talker's rows, on the device and in the dtype of its weights.

    Args:
        model: a family's talker, with a torch backbone.
        max_jobs: jobs at once; the batch is always so wide.
        max_model_len: positions of a row.
        prefill_chunk: prompt tokens computed at a time.
        chunks_a_step: prefill chunks in one step, so that running songs go on while others begin.
    """

    def __init__(
        self,
        model: TalkerModel,
        *,
        max_jobs: int,
        max_model_len: int,
        prefill_chunk: int = 64,
        chunks_a_step: int = 4,
    ) -> None:
        self.steps = 0
        self._model = model
        self._backbone = model.backbone
        self._max_model_len = max_model_len
        self._prefill_chunk = prefill_chunk
        self._chunks_a_step = chunks_a_step
        self._slots = RowSlots(max_jobs, model.rows)
        self._songs: dict[str, Song] = {}  # by job, in order of admission

        config, weight = self._backbone.config, self._backbone.norm.weight
        self._dtype, self._device = weight.dtype, weight.device
        self._kv_heads = config.num_key_value_heads
        self._head_dim = config.head_dim
        shape = (max_jobs, model.rows, self._kv_heads, max_model_len, self._head_dim)
        self._cache = [
            KeyValues(torch.empty(shape, dtype=self._dtype, device=self._device))
            for _ in range(config.num_hidden_layers)
        ]
        self._rotary = self._backbone.rotary(torch.arange(max_model_len, device=self._device))
        # Rows of slots that sit a step out are computed too: they must hold numbers.
        self._hidden = self._zeros(model.rows, max_jobs, config.hidden_size)
        self._codes = torch.zeros(max_jobs, max_model_len, model.codebooks, dtype=torch.int64, device=self._device)
        self._chunk = self._zeros(model.rows, prefill_chunk, config.hidden_size)
        heads = config.num_attention_heads * self._head_dim
        self._attended = self._zeros(model.rows, max_jobs, heads)
        self._chunk_attended = self._zeros(model.rows, prefill_chunk, heads)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self._dtype, device=self._device)

    @property
    def free_jobs(self) -> int:
        """How many more jobs could be admitted now."""
        return self._slots.free

    @property
    def idle(self) -> bool:
        return not self._songs

    def admit(self, history: FrameHistory, prompts: list[list[int]]) -> None:
        """Bind rows to a job; its prefill begins with the next step.

        Raises:
            DoesNotFit: the prompt leaves no position for a frame.
            NoFreeRows: every slot is taken.
            ValueError: the prompts are not the model's rows of one length.
        """
        fit(history, prompts, self._model.rows, self._max_model_len)
        slot = take_rows(self._slots, self._model, history, prompts)
        self._songs[history.job] = Song(history, slot, len(prompts[0]))

    def free(self, job: str) -> int:
        """Give the job's rows back, all at once; how many there were."""
        self._songs.pop(job, None)
        return self._slots.release(job)

    def profile(self) -> dict[str, Any]:
        """All that the bits of its output depend on, besides the weights and the machine."""
        cuda = self._device.type == "cuda"
        return {
            "runner": "torch",
            "dtype": str(self._dtype),
            "device": torch.cuda.get_device_name(self._device) if cuda else self._device.type,
            "max_jobs": self._slots.max_jobs,
            "prefill_chunk": self._prefill_chunk,
        }

    @torch.inference_mode()
    def step(self) -> list[FrameHistory]:
        """Prefill a little, draw for every job that is ready, and feed the draws back.

        Returns:
            The jobs that drew a frame or ended; an ended one is left alone until it is freed.
        """
        self.steps += 1
        self._prefill_some()
        ready = [song for song in self._songs.values() if not song.prefilling and song.history.reason is None]
        if ready:
            draws = self._draw(ready)
            self._record(draws, ready)
            self._decode(draws.codes, [song for song in ready if song.history.reason is None])
        return [song.history for song in ready]

    def _draw(self, songs: list[Song]) -> Draws:
        codes = torch.zeros((self._slots.max_jobs, self._model.codebooks), dtype=torch.int64)
        for song in songs:
            if song.history.next_forced is not None:
                codes[song.slot] = torch.from_numpy(song.history.next_forced.astype("int64"))
        drawing = [song for song in songs if song.history.next_forced is None]
        who = Drawing(
            slots=self._numbers(song.slot for song in drawing),
            seeds=self._numbers(song.history.request.seed for song in drawing),
            draws=self._numbers(song.history.draw for song in drawing),
            history=self._codes,
            conditioning=any(song.history.wants_conditioning for song in songs),
        )
        return self._model.draw(self._hidden, codes.to(self._device), who)

    def _numbers(self, numbers: Iterable[int]) -> Tensor:
        return torch.tensor(list(numbers), dtype=torch.int64, device=self._device)

    def _record(self, draws: Draws, songs: list[Song]) -> None:
        slots, made = self._numbers(song.slot for song in songs), self._numbers(song.history.draw for song in songs)
        self._codes[slots, made] = draws.codes[slots]
        codes = draws.codes.to("cpu", torch.int16).numpy()
        ended = draws.ended.tolist()
        wanted = any(song.history.wants_conditioning for song in songs)
        conditioning = draws.conditioning.float().cpu().numpy() if wanted else None
        for song in songs:
            history, slot = song.history, song.slot
            if ended[slot]:
                history.stop()
            else:
                row = conditioning[slot].copy() if conditioning is not None and history.wants_conditioning else None
                history.add(codes[slot].copy(), row)

    # --- prefill ------------------------------------------------------------------------------------------------------

    def _prefill_some(self) -> None:
        left = self._chunks_a_step
        for song in self._songs.values():
            while left and song.prefilling:
                self._prefill_chunk_of(song)
                left -= 1

    def _prefill_chunk_of(self, song: Song) -> None:
        start = song.length
        tokens = min(self._prefill_chunk, song.prompt_tokens - start)
        for row in range(self._model.rows):
            self._chunk[row, :tokens] = self._model.embed_prompt(song.slot, row, start, start + tokens)
        # The padding's positions may lie past the last one; their rows are thrown away.
        positions = torch.arange(start, start + self._prefill_chunk, device=self._device)
        positions = positions.clamp_(max=self._max_model_len - 1).repeat(self._model.rows)

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return self._attend_chunk(layer, song.slot, start, tokens, queries, keys, values)

        hidden = self._backbone(self._chunk.flatten(0, 1), self._rotary_at(positions), attend)
        song.length += tokens
        if not song.prefilling:
            self._hidden[:, song.slot] = hidden.view_as(self._chunk)[:, tokens - 1]

    def _attend_chunk(
        self, layer: int, slot: int, start: int, tokens: int, queries: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """Causal attention of a chunk's `tokens` tokens to themselves and to the `start` positions before them."""
        rows, end = self._model.rows, start + tokens
        cache = self._cache[layer]
        for cached, new in ((cache.keys, keys), (cache.values, values)):
            by_head = new.view(rows, self._prefill_chunk, self._kv_heads, self._head_dim)[:, :tokens].transpose(1, 2)
            cached[slot, :, :, start:end] = by_head
        # Queries that share a key head are stacked, so that each key head meets its queries in one product.
        grouped = queries.view(rows, self._prefill_chunk, self._kv_heads, -1, self._head_dim)[:, :tokens]
        grouped = grouped.permute(0, 2, 3, 1, 4).flatten(2, 3)
        group = grouped.shape[2] // tokens
        seen = torch.ones(tokens, end, dtype=torch.bool, device=self._device).tril_(start).repeat(group, 1)
        attended = F.scaled_dot_product_attention(
            grouped, cache.keys[slot, :, :, :end], cache.values[slot, :, :, :end], attn_mask=seen
        )
        attended = attended.unflatten(2, (group, tokens)).permute(0, 3, 1, 2, 4)
        self._chunk_attended[:, :tokens] = attended.reshape(rows, tokens, -1)
        return self._chunk_attended.flatten(0, 1)

    # --- decode -------------------------------------------------------------------------------------------------------

    def _decode(self, codes: Tensor, songs: list[Song]) -> None:
        """Feed the draws back: one position more for each of the songs."""
        if not songs:
            return
        rows = self._model.rows
        by_slot, draws = [0] * self._slots.max_jobs, [0] * self._slots.max_jobs
        for song in songs:
            by_slot[song.slot], draws[song.slot] = song.length, song.history.draw - 1
        embeds = self._model.feedback(codes, self._numbers(range(len(codes))), self._numbers(draws)).repeat(rows, 1)
        positions = torch.tensor(by_slot, device=self._device).repeat(rows)
        slots = self._numbers(song.slot for song in songs)
        lengths = self._numbers(song.length for song in songs)

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return self._attend_newest(layer, songs, slots, lengths, queries, keys, values)

        self._hidden = self._backbone(embeds, self._rotary_at(positions), attend).view_as(self._hidden)
        for song in songs:
            song.length += 1

    def _attend_newest(
        self,
        layer: int,
        songs: list[Song],
        slots: Tensor,
        lengths: Tensor,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        """Attention of each song's newest position to all of its own, song by song."""
        cache = self._cache[layer]
        by_slot = (self._model.rows, self._slots.max_jobs, self._kv_heads, -1, self._head_dim)
        for cached, new in ((cache.keys, keys), (cache.values, values)):
            cached[slots, :, :, lengths] = new.unflatten(0, by_slot[:2])[:, slots].transpose(0, 1)
        queries = queries.view(by_slot)
        for song in songs:
            slot, end = song.slot, song.length + 1
            attended = F.scaled_dot_product_attention(
                queries[:, slot], cache.keys[slot, :, :, :end], cache.values[slot, :, :, :end]
            )
            self._attended[:, slot] = attended.flatten(1)
        return self._attended.flatten(0, 1)

    def _rotary_at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        cosine, sine = self._rotary
        return cosine[positions], sine[positions]
