"""What is known of a job, whichever client asked."""

from __future__ import annotations

from typing import Any

from producer.errors import SonglineError
from producer.exchanges import FINAL, State


class JobRecord:
    """`state` is the job as the api showed it last: all that GET /v1/jobs/{id} answers."""

    def __init__(self, state: State) -> None:
        self.state = state

    @property
    def id(self) -> str:
        return self.state["id"]

    @property
    def status(self) -> str | None:
        """queued, talking, sounding, completed, failed or cancelled; None for one whose log the api cannot read."""
        return self.state["status"]

    @property
    def final(self) -> bool:
        return self.status in FINAL

    @property
    def model(self) -> str | None:
        return self.state["model"]

    @property
    def seed(self) -> int:
        """The same model, input, parameters and seed give the same bytes."""
        return self.state["seed"]

    @property
    def audio_seconds(self) -> float:
        return self.state["audio_seconds"] or 0.0

    @property
    def sample_rate(self) -> int | None:
        """None where the job's model is not served any more."""
        return self.state["sample_rate"]

    @property
    def channels(self) -> int | None:
        return self.state["channels"]

    @property
    def error(self) -> dict[str, Any] | None:
        """Why it failed: code, message, retryable."""
        return self.state["error"]

    def shape(self) -> tuple[int, int]:
        """The sound's rate and channels. Raises SonglineError where they are not known."""
        if self.sample_rate is None or self.channels is None:
            raise SonglineError(f"the model of {self.id}, {self.model}, is not served there any more")
        return self.sample_rate, self.channels

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.status}>"
