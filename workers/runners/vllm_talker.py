"""The talker inside vLLM's engine: what comes before and after each forward, the same for both model runners.

Before a forward, every token's embedding is laid into one persistent buffer, by its position alone: a prompt token's by
its id, a later position's by the draw that it follows. So a song may be prefilled, stepped, preempted and taken up
again in any order of steps. After it, the rows' newest hidden states are laid into job slots, and one draw runs for
all slots at one padded shape, on CUDA as one graph. What was drawn stays on the device for the next step, and reaches
the host by copies that no step waits for.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from workers.models.family import Drawing, TalkerModel
from workers.runners.frame_copies import Arrived, FrameCopies
from workers.runners.uploads import Uploads, sent
from workers.talker.frames import FrameHistory
from workers.talker.rows import RowSlots, take_rows

# What the engine is told a row has sampled. It sees no codes: only whether the song goes on.
FRAME, END = 0, 1


class OutOfStep(RuntimeError):
    """The engine ran a job's rows in a way that the scheduler rules out: its output cannot be trusted."""


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of one engine step, in the batch's order.

    requests: their ids. computed: (n,) positions that each had before. scheduled: (n,) positions that it gets. samples:
    (n,) bool, whether its newest position is to be drawn from.
    """

    requests: list[str]
    computed: np.ndarray
    scheduled: np.ndarray
    samples: np.ndarray


@dataclass(slots=True, eq=False)
class Song:
    """A job's place in the engine."""

    history: FrameHistory
    slot: int
    prompt_tokens: int
    launched: int  # draws that the device was told to make, or has from the log
    embedded: bool = False  # whether the embedding after the newest draw is there already


def request_id(job: str, row: int) -> str:
    """The engine's name for a row of a job."""
    return f"{job}/{row}"


class VllmTalker:
    """Songs in the engine, their codes, and the draw.

    Args:
        max_jobs: job slots.
        max_tokens: the most tokens of one step.
        max_draws: the most draws of one song.
        hidden_size: of the backbone.
        graph: run the draw as a CUDA graph.
        compiled: have torch.compile fuse its small kernels.
    """

    def __init__(
        self,
        model: TalkerModel,
        *,
        max_jobs: int,
        max_tokens: int,
        max_draws: int,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
        graph: bool,
        compiled: bool = False,
    ) -> None:
        self.model = model
        self._max_jobs = max_jobs
        self._max_draws = max_draws
        self._device = device
        self._slots = RowSlots(max_jobs, model.rows)
        self._songs: dict[str, Song] = {}
        self._rows: dict[str, tuple[Song, int]] = {}  # by request id
        self._uploads = Uploads(device)
        self._copies: FrameCopies[Song] = FrameCopies(device)

        def zeros(*shape: int, of: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=of, device=device)

        self.embeds = zeros(max_tokens, hidden_size, of=dtype)  # the forward's input
        # Rows without a job, and draws that nobody makes, go to one place more than there are.
        self._hidden = zeros(model.rows * max_jobs + 1, hidden_size, of=dtype)
        self._codes = zeros(max_jobs, max_draws + 1, model.codebooks, of=torch.int64)
        self._signals = zeros(max_jobs + 1, of=torch.int64)
        self._next = zeros(max_jobs, hidden_size, of=dtype)  # each slot's embedding after its newest draw
        self._seeds = zeros(max_jobs, of=torch.int64)
        self._forced = zeros(max_jobs, of=torch.int64)  # draws below this one are repeated
        self._draws = zeros(max_jobs, of=torch.int64)
        self._all = torch.arange(max_jobs, device=device)
        self._frame_codes = zeros(max_jobs, model.codebooks, of=torch.int16)
        self._frame_ended = zeros(max_jobs, of=torch.bool)
        self._frame_conditioning: Tensor | None = None
        if compiled:
            model.compile_draw()
        self._graph = self._captured() if graph else None

    # --- songs --------------------------------------------------------------------------------------------------------

    @property
    def free_jobs(self) -> int:
        return self._slots.free

    @property
    def idle(self) -> bool:
        return not self._songs

    @torch.inference_mode()
    def bind(self, history: FrameHistory, prompts: list[list[int]]) -> int:
        """Give a job its slot; codes that it has from its log go to the device.

        Draws whose conditioning is out are not made again: they follow the prompt as tokens do.

        Returns:
            How many draws those are.

        Raises:
            NoFreeRows, ValueError: see `RowSlots.bind`.
        """
        logged = history.forced[: history.max_frames + history.lead]
        known = max(0, min(len(logged) - 1, history.sent + history.lead))
        slot = take_rows(self._slots, self.model, history, prompts)
        song = Song(history, slot, len(prompts[0]), launched=known)
        for codes in logged[:known]:
            history.add(codes, None)
        self._songs[history.job] = song
        for row in range(self.model.rows):
            self._rows[request_id(history.job, row)] = song, row
        self._seeds[song.slot].fill_(history.request.seed)
        self._forced[song.slot].fill_(len(logged))
        if len(logged):
            codes = sent(torch.from_numpy(logged.astype("int64")), self._device)
            self._codes[song.slot, : len(codes)] = codes
        return known

    def release(self, job: str) -> int:
        """Take the job's rows back, all at once; how many there were."""
        if self._songs.pop(job, None) is not None:
            for row in range(self.model.rows):
                del self._rows[request_id(job, row)]
        return self._slots.release(job)

    def refuse(self, request: str, why: str) -> FrameHistory | None:
        """The engine has given a job up, which one of its rows tells; None where nobody has the job any more."""
        song, _ = self._rows.get(request, (None, 0))
        if song is None:
            return None
        song.history.refused = why
        return song.history

    def arrived(self) -> list[FrameHistory]:
        """Add the draws that have reached the host to their songs; the songs that grew or ended, each once."""
        grown: dict[str, FrameHistory] = {}
        for step in self._copies.arrived():
            for song, draw in step.songs:
                if self._songs.get(song.history.job) is song and self._add(song, draw, step):
                    grown[song.history.job] = song.history
        return list(grown.values())

    @staticmethod
    def _add(song: Song, draw: int, step: Arrived[Song]) -> bool:
        history = song.history
        if history.reason is not None or draw < history.draw:  # a step that was under way when the song ended
            return False
        if draw > history.draw:
            raise OutOfStep(f"draw {draw} of {history.job} came before draw {history.draw}")
        if step.ended[song.slot]:
            history.stop()
        else:
            row = step.conditioning[song.slot].copy() if history.wants_conditioning else None
            history.add(step.codes[song.slot].copy(), row)
        return True

    # --- before the forward -------------------------------------------------------------------------------------------

    def compose(self, rows: StepRows) -> None:
        """Lay the step's embeddings into `embeds`."""
        self._lay_prompts(rows)
        at, by_slot, by_draw, newest = self._fed(rows)
        if not at:
            return
        places, slots, draws = self._uploads.put(at, by_slot, by_draw)
        after = self._next[slots] if newest else self.model.feedback(self._codes[slots, draws], slots, draws)
        self.embeds.index_copy_(0, places, after)

    def _lay_prompts(self, rows: StepRows) -> None:
        start = 0
        for request, computed, scheduled in zip(rows.requests, rows.computed, rows.scheduled, strict=True):
            song, row = self._rows.get(request, (None, 0))
            if song is not None and computed < (end := min(computed + scheduled, song.prompt_tokens)):
                self.embeds[start : start + end - computed] = self.model.embed_prompt(song.slot, row, computed, end)
            start += scheduled

    def _fed(self, rows: StepRows) -> tuple[list[int], list[int], list[int], bool]:
        """The tokens that follow a draw: places in the step, slots, draws; and whether each is its song's newest."""
        at: list[int] = []
        slots: list[int] = []
        draws: list[int] = []
        newest, start = True, 0
        for request, computed, scheduled in zip(rows.requests, rows.computed, rows.scheduled, strict=True):
            song, _ = self._rows.get(request, (None, 0))
            if song is not None:
                first = max(0, song.prompt_tokens - computed)
                for offset in range(first, scheduled):
                    draw = computed + offset - song.prompt_tokens
                    at.append(start + offset)
                    slots.append(song.slot)
                    draws.append(draw)
                    newest &= song.embedded and draw == song.launched - 1
            start += scheduled
        return at, slots, draws, newest

    # --- after the forward --------------------------------------------------------------------------------------------

    def post_sample(self, hidden: Tensor, rows: StepRows) -> Tensor:
        """Draw for every song whose rows are ready, and start the frames' way to the host.

        Args:
            hidden: (n, hidden), each row's newest hidden state.

        Returns:
            (n,) int64 on the device: FRAME or END. Rows that do not sample, or are no song's, get FRAME.

        Raises:
            OutOfStep: some but not all rows of a job are ready, or not at its next draw.
        """
        nowhere = self.model.rows * self._max_jobs
        places = [nowhere] * len(rows.requests)
        slots = [self._max_jobs] * len(rows.requests)
        ready: Counter[Song] = Counter()
        for index, request in enumerate(rows.requests):
            song, row = self._rows.get(request, (None, 0))
            if song is None or not rows.samples[index]:
                continue
            draw = int(rows.computed[index] + rows.scheduled[index]) - song.prompt_tokens
            if draw != song.launched:
                raise OutOfStep(f"{request} is at draw {draw}, and {song.launched} draws were made")
            places[index] = row * self._max_jobs + song.slot
            slots[index] = song.slot
            ready[song] += 1
        if split := next((song for song, count in ready.items() if count != self.model.rows), None):
            raise OutOfStep(f"only some rows of {split.history.job} were stepped")
        if not ready:
            return torch.zeros(len(slots), dtype=torch.int64, device=self._device)
        draws = [self._max_draws] * self._max_jobs
        for song in ready:
            draws[song.slot] = song.launched
        signalled, at, newest = self._uploads.put(slots, places, draws)
        self._hidden.index_copy_(0, at, hidden)
        self._draws.copy_(newest)
        self._copies.before_overwrite()
        if self._graph is not None:
            self._graph.replay()
        else:
            self._draw(self._numbers(sorted(song.slot for song in ready)))
        assert self._frame_conditioning is not None  # since the first draw
        self._copies.send(
            self._frame_codes, self._frame_ended, self._frame_conditioning,
            [(song, song.launched) for song in ready],
        )  # fmt: skip
        for song in ready:
            song.launched, song.embedded = song.launched + 1, True
        return self._signals[signalled]

    def _draw(self, slots: Tensor) -> None:
        """Draw for the slots; what was drawn goes to where the next step, and the copies, find it."""
        draws = self._draws[slots]
        codes = self._codes[self._all, self._draws]
        hidden = self._hidden[:-1].view(self.model.rows, self._max_jobs, -1)
        who = Drawing(slots, self._seeds[slots], draws, self._codes, repeats=draws < self._forced[slots])
        drawn = self.model.draw(hidden, codes, who)
        self._codes[self._all, self._draws] = drawn.codes
        drew = (self._draws < self._max_draws)[:, None]
        self._next.copy_(torch.where(drew, self.model.feedback(drawn.codes, self._all, self._draws), self._next))
        self._signals[:-1] = torch.where(drawn.ended, END, FRAME)
        self._frame_codes.copy_(drawn.codes)
        self._frame_ended.copy_(drawn.ended)
        if self._frame_conditioning is None:
            self._frame_conditioning = torch.zeros_like(drawn.conditioning)
        self._frame_conditioning.copy_(drawn.conditioning)

    @torch.inference_mode()
    def _captured(self) -> torch.cuda.CUDAGraph:
        warm = torch.cuda.Stream()
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm):
            for _ in range(3):
                self._draw(self._all)
        torch.cuda.current_stream().wait_stream(warm)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=warm):
            self._draw(self._all)
        return graph

    def _numbers(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)
