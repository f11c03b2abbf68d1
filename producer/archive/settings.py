"""What an operator can set about the archive."""

from __future__ import annotations

from dataclasses import dataclass

WAV, FLAC = "wav", "flac"  # what sound is kept as, and the suffix of its files; `sound.py` writes them
FORMATS = (WAV, FLAC)


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """Times in seconds.

    format: one of FORMATS. at_once: jobs that one process has in hand. look_every_s: and says that it lives.
    claim_s: how long a job is left to a process that says nothing of it; one at work renews its claim, for `patience_s`
    at most. first_pause_s: after a store that fails; it doubles up to longest_pause_s. unreadable_s: until a job whose
    log or sound cannot be read is looked at again.
    """

    format: str = WAV
    at_once: int = 2
    look_every_s: float = 1.0
    claim_s: float = 30.0
    patience_s: float = 900.0
    first_pause_s: float = 1.0
    longest_pause_s: float = 60.0
    unreadable_s: float = 300.0
