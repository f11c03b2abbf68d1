"""A long text's passages, spoken one after the other as one utterance.

To a runner a passage is a song of its own. It says what the passage before says too, whose frames its prompt ends with:
so voice and pace go on. Spans are cut from the frames of all passages, whose stream has no seam.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from broker_schemas.events import JobRequested, PassageEnd
from broker_schemas.job import JobState
from workers.talker.frames import FrameHistory
from workers.talker.loops import LoopGuard

if TYPE_CHECKING:
    from workers.models.family import Reference


@dataclass(frozen=True, slots=True)
class Passage:
    """Characters [start, end) of a request's input, and the most frames that they may take."""

    start: int
    end: int
    frames: int

    def param(self) -> dict[str, int]:
        """As an item of the request's `params["passages"]`."""
        return {"start": self.start, "end": self.end, "frames": self.frames}


def passages_of(params: dict[str, Any]) -> list[Passage]:
    """What a contract laid down; none for an input that is spoken as a whole."""
    return [Passage(**passage) for passage in params.get("passages", ())]


def passage_seed(seed: int, number: int) -> int:
    """The first passage has the job's. Each counts its draws from 0, and must not repeat another's noise."""
    if number == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:8]) >> 1


class Reading:
    """A job's frames as its passages are spoken: a function of the request, the codes, and where passages ended.

    A passage that a budget or the guard against loops has cut off is no model for what follows: the next one goes on
    from the newest that the model ended by itself, and begins anew where there is none.

    Args:
        state, logged: what the log has of the job; with passages, all logged frames' conditioning is out.
        sent: frames whose conditioning is out.
        lead: 0 for a family that makes passages.
        loops: looks at each passage by itself.

    Attributes:
        history: all of the job's frames.
        passage: the history that the runner is to have; with a text that is no long one, `history` itself.
    """

    history: FrameHistory
    passage: FrameHistory

    def __init__(
        self,
        request: JobRequested,
        state: JobState,
        logged: np.ndarray,
        *,
        sent: int,
        max_frames: int,
        lead: int,
        reference: Reference | None = None,
        loops: LoopGuard | None = None,
    ) -> None:
        self._passages = passages_of(request.params)
        self._logged = logged
        self._loops = loops
        self.history = FrameHistory(state.id, request, max_frames, lead, logged, reference, sent=sent)
        if not self._passages:
            self.history.loops = loops
            self.passage = self.history
            return
        self.history.ends = list(state.ends)
        self.history.codes = list(logged[: self._start])
        self.passage = self._next()

    @property
    def _start(self) -> int:
        """The first frame of the passage that is spoken now."""
        return self.history.ends[-1].frame if self.history.ends else 0

    def take(self) -> None:
        """Take over what the runner has added to the passage; that may end the job."""
        job, passage = self.history, self.passage
        if passage is job:
            return
        for codes in passage.codes[job.frames - self._start :]:
            job.add(codes, passage.waiting.pop(0) if job.wants_conditioning else None)
        if passage.reason is not None:
            job.ends.append(PassageEnd(job.frames, passage.reason, passage.looped))
            if len(job.ends) == len(self._passages):
                job.reason = "length" if any(end.reason == "length" for end in job.ends) else "stop"
        job.looped = any(end.looped for end in job.ends)

    def go_on(self) -> None:
        """Make the next passage `passage`: the one that was has ended, and the job has not."""
        self.passage = self._next()

    def _next(self) -> FrameHistory:
        job, number, start = self.history, len(self.history.ends), self._start
        said = self._said_before(number)
        text, context = self._text(number), None
        if said is not None:
            before, context = said
            text = before + text
        request = replace(job.request, input=text.rstrip(), seed=passage_seed(job.request.seed, number))
        return FrameHistory(
            job=f"{job.job}.{number}" if number else job.job,  # an engine may still be at work on the one before
            request=request,
            max_frames=min(self._passages[number].frames, job.max_frames - start),
            lead=job.lead,
            forced=self._logged[start:],
            reference=job.reference,
            context=context,
            loops=self._loops,
            sent=max(0, job.sent - start),
        )

    def _text(self, number: int) -> str:
        return self.history.request.input[self._passages[number].start : self._passages[number].end]

    def _said_before(self, number: int) -> tuple[str, np.ndarray] | None:
        """Text and codes of the newest passage that the model has ended, and with which it said something."""
        ends = self.history.ends
        for before in range(number - 1, -1, -1):
            start, end = ends[before - 1].frame if before else 0, ends[before].frame
            if start < end and ends[before].reason == "stop":
                return self._text(before), self.history.logged(start, end)
        return None
