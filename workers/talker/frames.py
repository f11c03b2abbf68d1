"""A job's frames: what was drawn, what is still to be drawn again, and what waits to be sent.

Kept by job and outside row slots, so that rows may be reordered, preempted and taken up again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from broker_schemas.events import JobRequested, PassageEnd
from workers.talker.loops import LoopGuard

if TYPE_CHECKING:
    from workers.models.family import Reference


@dataclass(slots=True)
class FrameHistory:
    """The draws of one job, or of one passage of a long text, in order.

    Draw d gives frame d - `lead`; the first `lead` draws are fed back but are no frames. After a takeover the draws in
    `forced`, from the log, are not drawn but repeated.
    """

    job: str
    request: JobRequested
    max_frames: int
    lead: int
    forced: np.ndarray  # (draws, codebooks) int16; empty for a new job
    reference: Reference | None = None
    # (frames, codebooks) int16, the last codes of the prompt: of the passage that a passage goes on from
    context: np.ndarray | None = None
    loops: LoopGuard | None = None
    sent: int = 0  # frames whose conditioning is out already
    codes: list[np.ndarray] = field(default_factory=list)  # each (codebooks,) int16
    waiting: list[np.ndarray] = field(
        default_factory=list
    )  # conditioning of the frames from `sent` on, (width,) float32
    reason: str | None = None  # why the song ended: stop | length
    looped: bool = False  # whether it ended since the model was caught in a loop
    ends: list[PassageEnd] = field(default_factory=list)  # of a long text's passages so far
    refused: str | None = None  # why the runner has given it up, where it has

    @property
    def draw(self) -> int:
        """Index of the next draw."""
        return len(self.codes)

    @property
    def frames(self) -> int:
        return max(0, len(self.codes) - self.lead)

    @property
    def next_forced(self) -> np.ndarray | None:
        """The next draw's codes where the log has them."""
        return self.forced[self.draw] if self.draw < len(self.forced) else None

    @property
    def wants_conditioning(self) -> bool:
        """Whether the next draw's conditioning is still to be sent."""
        return self.draw - self.lead >= self.sent

    def add(self, codes: np.ndarray, conditioning: np.ndarray | None) -> None:
        """Take the next draw. `conditioning` may be None only where it is not wanted."""
        if self.wants_conditioning:
            assert conditioning is not None
            self.waiting.append(conditioning)
        self.codes.append(codes)
        if self.frames >= self.max_frames:
            self.reason = "length"
        elif self.loops is not None and self.loops.caught(self.codes):
            self.reason, self.looped = "length", True

    def stop(self) -> None:
        """The model ended the song at the next draw."""
        self.reason = "stop"

    def take_conditioning(self, frames: int) -> np.ndarray:
        """(frames, width) float32: the next frames to be sent, which are forgotten here."""
        taken, self.waiting = self.waiting[:frames], self.waiting[frames:]
        self.sent += frames
        return np.stack(taken)

    def logged(self, first: int, last: int) -> np.ndarray:
        """(last - first, codebooks) int16: the draws [first, last)."""
        return np.stack(self.codes[first:last])
