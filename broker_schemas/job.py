"""A job's state: the fold of its log. One pure function, used by the api, the workers and the tools alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from broker_schemas.events import (
    AudioChunk,
    Codes,
    CodesLogged,
    Event,
    JobAdmitted,
    JobCancelled,
    JobCompleted,
    JobFailed,
    JobRequested,
    JobResumed,
    PassageEnd,
    ReferenceEncoded,
    RowsFreed,
    Span,
    SpanTerminal,
)  # fmt: skip


class Status(StrEnum):
    QUEUED = "queued"  # accepted, no talker yet
    TALKING = "talking"  # a talker draws frames; nothing to hear yet
    SOUNDING = "sounding"  # at least one chunk is in the audio stream
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in (Status.COMPLETED, Status.FAILED, Status.CANCELLED)


class BrokenLog(ValueError):
    """The log's events cannot follow one another: a gap, or one index with two contents."""


@dataclass(frozen=True, slots=True)
class JobState:
    """What the log says so far. Times in Unix milliseconds; frames and samples per channel."""

    id: str = ""
    status: Status = Status.QUEUED
    seq: int = 0
    request: JobRequested | None = None
    requested_at: int = 0
    admitted_at: dict[str, int] = field(default_factory=dict)  # role -> first admission
    profiles: dict[str, str] = field(default_factory=dict)  # role -> pinned profile
    attempts: dict[str, int] = field(default_factory=dict)  # role -> newest attempt
    first_chunk_at: int | None = None
    ended_at: int | None = None
    reference: ReferenceEncoded | None = None
    draws: int = 0  # codes in the log, draw 0 included
    ends: tuple[PassageEnd, ...] = ()  # of a long text's passages that are known to have ended
    spans: int = 0
    frames: int = 0  # frames whose span is out
    terminal: bool = False
    reason: str | None = None  # why the song ended: stop | length
    looped: bool = False  # whether the guard against loops ended it
    chunks: int = 0
    samples: int = 0
    rows_freed: tuple[RowsFreed, ...] = ()
    cancelled_by: str | None = None
    error: JobFailed | None = None

    @property
    def requested(self) -> JobRequested:
        """The request; raises BrokenLog where the log has none."""
        if self.request is None:
            raise BrokenLog(f"the log of job {self.id} does not begin with its request")
        return self.request


def fold(events: Iterable[Event], state: JobState | None = None) -> JobState:
    """The state after `events`, which follow `state` where one is given; raises BrokenLog."""
    state = state or JobState()
    for event in events:
        state = step(state, event)
    return state


def step(state: JobState, event: Event) -> JobState:
    """The state after one more event. Unknown types change nothing but `seq`."""
    if event.seq != state.seq + 1:
        raise BrokenLog(f"event {event.seq} of job {event.job} follows event {state.seq}")
    state = replace(state, seq=event.seq, id=event.job)
    match event.payload:
        case JobRequested() as request:
            return replace(state, request=request, requested_at=event.at)
        case RowsFreed() as freed:
            return replace(state, rows_freed=(*state.rows_freed, freed))
        case _ if state.status.final:
            return state
        case JobAdmitted() as admitted:
            state = replace(
                state,
                admitted_at={admitted.role: event.at} | state.admitted_at,
                profiles=state.profiles | {admitted.role: admitted.profile},
                attempts=state.attempts | {admitted.role: admitted.attempt},
            )
            started = admitted.role == "talker" and state.status is Status.QUEUED
            return replace(state, status=Status.TALKING) if started else state
        case JobResumed() as resumed:
            return replace(state, attempts=state.attempts | {resumed.role: resumed.attempt})
        case ReferenceEncoded() as reference:
            return replace(state, reference=reference)
        case CodesLogged() as logged:
            draws = max(state.draws, logged.start_draw + logged.codes.shape[0])
            return replace(state, draws=draws, ends=_with_ends(state, logged))
        case Span() as span:
            return _with_span(state, span)
        case AudioChunk() as chunk:
            if chunk.index != state.chunks or chunk.start_sample != state.samples:
                raise BrokenLog(f"chunk {chunk.index} of job {state.id} follows {state.chunks} chunks")
            return replace(
                state,
                status=Status.SOUNDING,
                chunks=state.chunks + 1,
                samples=state.samples + chunk.samples,
                first_chunk_at=state.first_chunk_at or event.at,
            )
        case JobCompleted():
            return replace(state, status=Status.COMPLETED, ended_at=event.at)
        case JobFailed() as failed:
            return replace(state, status=Status.FAILED, ended_at=event.at, error=failed)
        case JobCancelled() as cancelled:
            return replace(state, status=Status.CANCELLED, ended_at=event.at, cancelled_by=cancelled.by_whom)
    return state


def _with_span(state: JobState, span: Span) -> JobState:
    if span.index != state.spans or span.start_frame != state.frames or state.terminal:
        raise BrokenLog(f"span {span.index} of job {state.id} follows {state.spans} spans, {state.frames} frames")
    frames = span.start_frame + span.frames
    terminal = span if isinstance(span, SpanTerminal) else None
    return replace(
        state,
        spans=state.spans + 1,
        frames=frames,
        draws=max(state.draws, span.end_draw),
        ends=_with_ends(state, span),
        terminal=terminal is not None,
        reason=terminal.reason if terminal else None,
        looped=terminal is not None and terminal.looped,
    )


def _with_ends(state: JobState, codes: Codes) -> tuple[PassageEnd, ...]:
    return (*state.ends, *(PassageEnd(*end) for end in codes.ends))


def logged_codes(events: Iterable[Event]) -> np.ndarray:
    """All codes in the log: (draws, codebooks) int16, from draw 0 on; (0, 0) where there are none.

    Raises BrokenLog where a draw is missing, or is logged twice with two contents.
    """
    codes: np.ndarray | None = None
    for event in events:
        match event.payload:
            case CodesLogged() | Span() as logged:
                start, more = logged.start_draw, logged.codes.numpy()
            case _:
                continue
        if codes is None:
            codes = np.empty((0, more.shape[1]), dtype=more.dtype)
        if start > len(codes):
            raise BrokenLog(f"draws {len(codes)} to {start} of job {event.job} are not in its log")
        shared = min(len(codes) - start, len(more))
        if not np.array_equal(codes[start : start + shared], more[:shared]):
            raise BrokenLog(f"draw {start} and on of job {event.job} were logged twice, and differ")
        codes = np.concatenate([codes, more[shared:]])
    return codes if codes is not None else np.empty((0, 0), dtype=np.int16)
