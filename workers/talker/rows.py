"""Row slots: which job has which rows of the batch.

A job has one slot, and with it all of its rows: row r of slot s is row r * max_jobs + s. They are bound and released
together. Nothing else is kept by slot between steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from workers.talker.frames import FrameHistory

if TYPE_CHECKING:
    from workers.models.family import TalkerModel


class DoesNotFit(ValueError):
    """The job needs more positions than a row has."""


class NoFreeRows(RuntimeError):
    """Every slot is taken: free a job first."""


def fit(history: FrameHistory, prompts: list[list[int]], rows: int, positions: int) -> None:
    """Bound a song by the positions that its rows have: it ends there, with reason "length", as by its frame budget.

    Raises:
        ValueError: the prompts are not those of so many rows, of one length.
        DoesNotFit: not even one frame would fit.
    """
    if len(prompts) != rows or not prompts[0] or len({len(prompt) for prompt in prompts}) != 1:
        raise ValueError(f"a job needs {rows} prompts of one length")
    prompt_tokens = len(prompts[0])
    room = positions - prompt_tokens - history.lead
    if room < 1:
        raise DoesNotFit(
            f"{history.job} has a prompt of {prompt_tokens} tokens, which leaves no room for frames: max_model_len is "
            f"{positions}"
        )
    history.max_frames = min(history.max_frames, room)


def take_rows(slots: RowSlots, model: TalkerModel, history: FrameHistory, prompts: list[list[int]]) -> int:
    """Give the job a slot, and have the model lay down by slot what its request says; a refused job leaves no trace.

    Returns:
        The slot.

    Raises: as `RowSlots.bind` and `TalkerModel.bind` do.
    """
    slot = slots.bind(history)
    try:
        model.bind(slot, history.request, prompts, history.reference, history.context)
    except BaseException:
        slots.release(history.job)
        raise
    return slot


class RowSlots:
    """`max_jobs` slots of `rows` rows each."""

    def __init__(self, max_jobs: int, rows: int) -> None:
        self.max_jobs = max_jobs
        self.rows = rows
        self._slots: list[FrameHistory | None] = [None] * max_jobs

    def __iter__(self) -> Iterator[tuple[int, FrameHistory]]:
        """(slot, job) of each slot that is taken, by slot."""
        return ((slot, history) for slot, history in enumerate(self._slots) if history is not None)

    @property
    def free(self) -> int:
        """Slots that are not taken."""
        return self._slots.count(None)

    def bind(self, history: FrameHistory) -> int:
        """Give the job the lowest free slot, and return it. Raises NoFreeRows; ValueError for a job that has one."""
        if self.slot(history.job) is not None:
            raise ValueError(f"{history.job} has its rows already")
        if not self.free:
            raise NoFreeRows(f"all {self.max_jobs} jobs' rows are taken")
        slot = self._slots.index(None)
        self._slots[slot] = history
        return slot

    def slot(self, job: str) -> int | None:
        """The job's slot, None where it has none."""
        return next((slot for slot, history in self if history.job == job), None)

    def release(self, job: str) -> int:
        """Take the job's rows back, all at once; how many there were."""
        slot = self.slot(job)
        if slot is None:
            return 0
        self._slots[slot] = None
        return self.rows
