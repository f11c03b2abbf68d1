"""Every event of a job's log, and the envelope they share.

An event is one entry of the stream `sl:{id}:log`; its sequence number is the entry's id, and is given by append-if
when the event is written. Readers keep fields that they do not know, skip types that they do not know, and refuse an
envelope of a newer major version.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

from broker_schemas.codec import DecodeError, Tensor, pack, unpack

VERSION = "1.0"


class NewerVersion(DecodeError):
    """The event was written by a newer major version of Songline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """The `data` of an event. `extra` holds fields that a newer minor version added."""

    type: ClassVar[str]
    extra: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def identity(self) -> str:
        """What makes a second writing of this event the same event; see append-if."""
        return self.type

    def data(self) -> dict[str, Any]:
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "extra"}
        return {**self.extra, **own}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Payload:
        names = {f.name for f in fields(cls)} - {"extra"}
        own = {name: value for name, value in data.items() if name in names}
        extra = {name: value for name, value in data.items() if name not in names}
        try:
            return cls(**own, extra=extra)
        except TypeError as error:
            raise DecodeError(f"{cls.type} lacks a field: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequested(Payload):
    """The job as accepted: everything that its audio depends on.

    `deadline` in Unix milliseconds; `ttl_ms`: how long the job's keys live on after its end. `sample_rate` (Hz) and
    `channels` are the sound's, as the model's contract has them; None where an older api accepted the job.
    """

    type: ClassVar[str] = "job.requested"
    model: str
    input: str
    params: dict[str, Any]
    seed: int
    owner: str
    deadline: int
    ttl_ms: int = 3_600_000
    traceparent: str | None = None
    sample_rate: int | None = None
    channels: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAdmitted(Payload):
    """A worker took the job in a role for the first time; the role's profile is pinned from here on."""

    type: ClassVar[str] = "job.admitted"
    role: str
    worker: str
    attempt: int
    rows: int
    profile: str
    token: str

    @property
    def identity(self) -> str:
        return f"{self.type}:{self.token}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResumed(Payload):
    """Another attempt took the job over; it goes on from a frame (talker) or a window (acoustic)."""

    type: ClassVar[str] = "job.resumed"
    role: str
    worker: str
    attempt: int
    token: str
    from_frame: int | None = None
    from_window: int | None = None

    @property
    def identity(self) -> str:
        return f"{self.type}:{self.token}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceEncoded(Payload):
    """What the request's recording became, for a voice that is cloned: both stages and any successor use this one."""

    type: ClassVar[str] = "reference.encoded"
    recording: str  # sha256 of the recording as it was sent
    speaker: Tensor  # (width,) float32
    codes: Tensor | None  # (frames, codebooks) int16; None where only the voice's colour was asked for


class PassageEnd(NamedTuple):
    """A passage of a long text ended before `frame`, as the fields of SpanTerminal say of a job."""

    frame: int
    reason: str
    looped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes(Payload):
    """Brings codes. `ends`: of the passages that ended up to the last frame, and that no event before this one has."""

    ends: tuple[PassageEnd, ...] = ()

    def data(self) -> dict[str, Any]:
        """Without `ends` where there are none, as events are that do not know them."""
        own = Payload.data(self)
        return own if self.ends else {name: value for name, value in own.items() if name != "ends"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CodesLogged(Codes):
    """A hop's codes, written where no span event carries them yet. `start_draw` counts from the song's draw 0."""

    type: ClassVar[str] = "codes.logged"
    start_draw: int
    codes: Tensor  # (draws, codebooks) int16
    conditioning: str | None = None  # sha256 of the conditioning sent along, where it is (async_chunk: false)

    @property
    def identity(self) -> str:
        return f"codes:{self.start_draw}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span(Codes):
    """Frames [start_frame, start_frame + frames) and their codes.

    A model's first `lead` draws are fed back but are no frames; the first span's codes begin with them.
    """

    index: int
    start_frame: int
    frames: int
    codes: Tensor  # (frames, codebooks) int16; `lead` more in the first span
    conditioning: str  # sha256 of the conditioning payload
    lead: int = 1

    @property
    def identity(self) -> str:
        return f"span:{self.index}"

    @property
    def start_draw(self) -> int:
        return self.start_frame + self.lead if self.index else 0

    @property
    def end_draw(self) -> int:
        return self.start_frame + self.frames + self.lead


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanWindow(Span):
    """Frames that complete one window which is known not to be the last."""

    type: ClassVar[str] = "span.window"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanTerminal(Span):
    """Everything that is left when the song ends: may complete more than one window."""

    type: ClassVar[str] = "span.terminal"
    # "stop": the model ended the song; "length": the frame budget did, or the guard against loops. Or they
    # cut off a passage of it.
    reason: str
    looped: bool = False  # whether it was the guard


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioChunk(Payload):
    """One window's sound is in the audio stream. `start_sample` and `samples` per channel; sha256 of the PCM bytes."""

    type: ClassVar[str] = "audio.chunk"
    index: int
    samples: int
    start_sample: int
    sha256: str

    @property
    def identity(self) -> str:
        return f"chunk:{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsFreed(Payload):
    """A worker gave the job's rows back, at its own step number `step`."""

    type: ClassVar[str] = "rows.freed"
    rows: int
    step: int
    why: str
    token: str

    @property
    def identity(self) -> str:
        return f"{self.type}:{self.token}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCancelled(Payload):
    """The tombstone."""

    type: ClassVar[str] = "job.cancelled"
    by_whom: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed(Payload):
    """The job cannot be finished. `retryable`: the same request may succeed if sent again."""

    type: ClassVar[str] = "job.failed"
    code: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCompleted(Payload):
    """All sound is in the audio stream. `samples` per channel."""

    type: ClassVar[str] = "job.completed"
    samples: int
    frames: int
    reason: str


PAYLOADS: dict[str, type[Payload]] = {
    payload.type: payload
    for payload in (
        JobRequested, JobAdmitted, JobResumed, ReferenceEncoded, CodesLogged, SpanWindow, SpanTerminal, AudioChunk,
        RowsFreed, JobCancelled, JobFailed, JobCompleted,
    )
}  # fmt: skip
FINAL_TYPES = frozenset({JobCancelled.type, JobFailed.type, JobCompleted.type})


@dataclass(frozen=True, slots=True)
class Event:
    """The envelope. `at` in Unix milliseconds by the broker's clock; `payload` is None for an unknown type."""

    type: str
    job: str
    seq: int
    at: int
    by: str
    data: dict[str, Any]
    payload: Payload | None
    v: str = VERSION


def encode_open(payload: Payload, *, job: str, by: str) -> bytes:
    """The envelope's fields but for `seq` and `at`, which append-if adds: the five pairs of a seven-pair map."""
    envelope = {"v": VERSION, "type": payload.type, "job": job, "by": by, "data": payload.data()}
    return pack(envelope)[1:]  # without the map header


def decode(raw: bytes) -> Event:
    """One log entry's event.

    Raises:
        NewerVersion: its major version is newer than this program's.
        DecodeError: it is no event at all.
    """
    envelope = unpack(raw)
    if not isinstance(envelope, dict) or not {"v", "type", "job", "seq", "at", "by", "data"} <= envelope.keys():
        raise DecodeError("not an event: a map with v, type, job, seq, at, by and data was expected")
    _check_version(str(envelope["v"]))
    kind = PAYLOADS.get(envelope["type"])
    return Event(
        type=envelope["type"],
        job=envelope["job"],
        seq=envelope["seq"],
        at=envelope["at"],
        by=envelope["by"],
        data=envelope["data"],
        payload=kind.from_data(envelope["data"]) if kind else None,
        v=envelope["v"],
    )


def _check_version(version: str) -> None:
    major = version.split(".")[0]
    if not major.isdigit():
        raise DecodeError(f"an event of version {version!r} cannot be read")
    if int(major) > int(VERSION.split(".")[0]):
        raise NewerVersion(
            f"this event has version {version}, and this program reads up to {VERSION}: upgrade songline here first"
        )
