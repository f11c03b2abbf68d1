"""Cuts a job's frames into what is written to its log: spans, and the codes of hops that no span carries yet."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from broker_schemas.codec import Tensor, pack
from broker_schemas.events import CodesLogged, PassageEnd, Payload, SpanTerminal, SpanWindow
from broker_schemas.job import JobState
from workers.talker.frames import FrameHistory
from workers.talker.windows import Plan

PART_BYTES = 4 << 20  # a larger payload is split on the wire


@dataclass(frozen=True, slots=True)
class Cut:
    """An event, the conditioning that goes with it as (entry id, payload) parts, and the draws logged before it."""

    payload: Payload
    conditioning: list[tuple[str, bytes]]
    after: int


class SpanCutter:
    """What of one job is out, and what is next. A window is released one frame late, and so are a hop's codes."""

    def __init__(self, plan: Plan, state: JobState, *, lead: int, async_chunk: bool) -> None:
        self._plan = plan
        self._lead = lead
        self._async = async_chunk
        self._spans = state.spans
        self._draws = state.draws  # logged
        self._ends = len(state.ends)  # logged

    @staticmethod
    def sent(state: JobState, *, lead: int, async_chunk: bool) -> int:
        """Frames whose conditioning the log's events have sent: by spans, or else hop by hop with the codes."""
        return state.frames if async_chunk else max(0, state.draws - lead)

    def cut(self, history: FrameHistory) -> Iterator[Cut]:
        """What the newest draw completes; nothing at most steps."""
        if history.reason:
            if history.frames:
                yield self._terminal(history, history.reason)
            return
        while self._async and self._plan.whole(history.frames) > self._spans:
            yield self._window(history)
        while history.frames - max(0, self._draws - self._lead) > self._plan.hop:
            yield self._codes(history)

    def _window(self, history: FrameHistory) -> Cut:
        start, end = self._plan.sent_with(self._spans), self._plan.sent_with(self._spans + 1)
        codes = self._span_codes(history, start, end)
        digest, parts = self._conditioning(history, end - history.sent)
        span = SpanWindow(
            index=self._spans, start_frame=start, frames=end - start, codes=codes, conditioning=digest, lead=self._lead,
            ends=self._new_ends(history, end),
        )  # fmt: skip
        after = self._draws
        self._spans += 1
        self._draws = max(self._draws, end + self._lead)
        return Cut(span, parts, after)

    def _terminal(self, history: FrameHistory, reason: str) -> Cut:
        start = self._plan.sent_with(self._spans)
        codes = self._span_codes(history, start, history.frames)
        digest, parts = self._conditioning(history, history.frames - history.sent)
        span = SpanTerminal(
            index=self._spans, start_frame=start, frames=history.frames - start, codes=codes, conditioning=digest,
            lead=self._lead, reason=reason,
            looped=history.looped, ends=self._new_ends(history, history.frames),
        )  # fmt: skip
        return Cut(span, parts, after=self._draws)

    def _codes(self, history: FrameHistory) -> Cut:
        first = self._draws
        frames = max(0, first - self._lead) + self._plan.hop
        last = frames + self._lead
        digest, parts = (None, []) if self._async else self._conditioning(history, frames - history.sent)
        self._draws = last
        codes = Tensor.of(history.logged(first, last))
        ends = self._new_ends(history, frames)
        return Cut(CodesLogged(start_draw=first, codes=codes, conditioning=digest, ends=ends), parts, after=first)

    def _new_ends(self, history: FrameHistory, frame: int) -> tuple[PassageEnd, ...]:
        """Of passages up to a frame. An event is cut once a later frame is there, so that it can lack none of them."""
        ends = tuple(end for end in history.ends[self._ends :] if end.frame <= frame)
        self._ends += len(ends)
        return ends

    def _span_codes(self, history: FrameHistory, start: int, end: int) -> Tensor:
        first = 0 if self._spans == 0 else start + self._lead
        return Tensor.of(history.logged(first, end + self._lead))

    def _conditioning(self, history: FrameHistory, frames: int) -> tuple[str, list[tuple[str, bytes]]]:
        """(sha256, parts): entry ids are `<span + 1>-<first frame>`: they rise, and a second writing repeats them."""
        first = history.sent
        if frames == 0:
            return hashlib.sha256(b"").hexdigest(), []
        rows = np.ascontiguousarray(history.take_conditioning(frames), dtype="<f4")
        if not rows.size:  # the acoustic stage needs no more than the codes
            return hashlib.sha256(b"").hexdigest(), []
        a_part = max(1, PART_BYTES // rows[0].nbytes)
        parts = []
        for offset in range(0, frames, a_part):
            part = rows[offset : offset + a_part]
            parts.append((f"{self._spans + 1}-{first + offset}", pack({"start": first + offset, "x": Tensor.of(part)})))
        return hashlib.sha256(rows.data).hexdigest(), parts
