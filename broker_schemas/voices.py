"""Voices that people have uploaded: what is kept of each, and where."""

from __future__ import annotations

import unicodedata
from dataclasses import asdict, dataclass, fields
from typing import Any

import redis

from broker_schemas import keys
from broker_schemas.codec import DecodeError, pack, unpack

NO_VOICE = ("", "default")  # what clients send as a voice to leave it to the model; nobody's own voice is called so


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """A voice's record; its recording lies under `keys.recording(sha256)`, as it was sent.

    consent: the speaker's, in words or by reference, as the owner sent it. ref_text: what the recording says, "" where
    that is not known. size in bytes, seconds and sample_rate (Hz) of the recording. created_at in ms.
    """

    owner: str
    name: str
    consent: str
    ref_text: str
    sha256: str
    size: int
    seconds: float
    sample_rate: int
    created_at: int

    @property
    def field(self) -> str:
        """Where in `keys.VOICES` the record is."""
        return field(self.owner, self.name)

    def packed(self) -> bytes:
        return pack(asdict(self))

    @classmethod
    def unpacked(cls, raw: bytes) -> Voice:
        """Fields that a newer version added are passed over; raises DecodeError where one is missing."""
        record: Any = unpack(raw)
        names = [own.name for own in fields(cls)]
        if not isinstance(record, dict) or not set(names) <= record.keys():
            raise DecodeError("a voice's record lacks fields")
        return cls(**{name: record[name] for name in names})


def field(owner: str, name: str) -> str:
    """One for all ways to write the name: voices are found whatever the case."""
    return f"{owner}/{unicodedata.normalize('NFC', name).casefold()}"


def read_voice(client: redis.Redis, owner: str, name: str) -> Voice | None:
    """An owner's voice, by a synchronous client."""
    raw: Any = client.hget(keys.VOICES, field(owner, name))
    return None if raw is None else Voice.unpacked(raw)


def read_sound(client: redis.Redis, sha256: str) -> bytes:
    """A recording as it was sent, uploaded or with a request, by a synchronous client.

    Raises LookupError once no voice has it any more, and no job that brought it can still need it.
    """
    kept: list[Any] = client.mget(keys.recording(sha256), keys.sent_recording(sha256))
    sound = kept[0] or kept[1]
    if sound is None:
        raise LookupError(f"the recording {sha256} is gone: its voice was deleted, or the job that brought it is over")
    return sound
