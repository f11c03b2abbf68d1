"""A client of the api, for programs that wait: `Songline`. It knows HTTP, and nothing of Redis or models."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import httpx

from producer import exchanges, orders
from producer.exchanges import Exchange, State
from producer.job_record import JobRecord
from producer.sound import Chunk, SoundStream
from producer.wav import WavFile

T = TypeVar("T")
DEFAULT_URL = "http://127.0.0.1:8000"


class Songline:
    """The api at a URL. Every method raises SonglineError: Unreachable, Refused, and what else it says."""

    def __init__(
        self, url: str = DEFAULT_URL, *, api_key: str | None = None, transport: httpx.BaseTransport | None = None
    ) -> None:
        self.url = url
        with exchanges.reaching(url):
            self._http = httpx.Client(
                base_url=url, headers=exchanges.headers(api_key), timeout=exchanges.TIMEOUT, transport=transport
            )

    def say(
        self,
        text: str,
        *,
        model: str = orders.SPEECH_MODEL,
        voice: str | None = None,
        instructions: str | None = None,
        seed: int | None = None,
        **fields: Any,
    ) -> Job:
        """Have a text spoken: a job that has begun. `fields` are the model's own; GET /v1/models lists them."""
        return self.submit(
            orders.speech(text, model=model, voice=voice, instructions=instructions, seed=seed, **fields)
        )

    def sing(
        self,
        lyrics: str,
        *,
        caption: str | None = None,
        model: str = orders.SONG_MODEL,
        seed: int | None = None,
        **fields: Any,
    ) -> Job:
        """Have lyrics sung: a job that has begun. `max_new_tokens` bounds its length, in frames."""
        return self.submit(orders.song(lyrics, caption=caption, model=model, seed=seed, **fields))

    def submit(self, body: Mapping[str, Any], *, idempotency_key: str | None = None) -> Job:
        """Send a request as POST /v1/jobs takes it. The same key again gives the same job."""
        return Job(self, self._run(exchanges.submit(body, idempotency_key)))

    def job(self, id: str) -> Job:
        return Job(self, self._run(exchanges.look(id)))

    def jobs(self, *, status: str | None = None, model: str | None = None, limit: int = 20) -> list[Job]:
        """Your jobs, newest first."""
        return [Job(self, state) for state in self._run(exchanges.jobs(status, model, limit))]

    def cancel(self, id: str) -> Job:
        """End a job; one that is over stays as it is."""
        return Job(self, self._run(exchanges.cancel(id)))

    def models(self) -> list[dict[str, Any]]:
        """The models that are served: id, sample_rate, voices, fields, …"""
        return self._run(exchanges.models())

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Songline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, exchange: Exchange[T]) -> T:
        try:
            call = next(exchange)
            while True:
                with exchanges.reaching(self.url):
                    answer = self._http.request(call.verb, call.path, **call.options())
                call = exchange.send(exchanges.answered(answer))
        except StopIteration as done:
            return done.value

    def _listen(self, sound: SoundStream) -> Iterator[Chunk]:
        while True:
            broken = None
            try:
                with self._http.stream("GET", sound.path, headers=sound.headers) as answer:
                    if answer.is_error:
                        answer.read()
                    exchanges.checked(answer)
                    for line in answer.iter_lines():
                        if (chunk := sound.line(line)) is not None:
                            yield chunk
                        if sound.end:
                            return
            except httpx.HTTPError as error:
                broken = error
            time.sleep(sound.pause(broken))


class Job(JobRecord):
    """A job. Iterating over it gives its sound, chunk by chunk as it is made, from the first one on."""

    def __init__(self, client: Songline, state: State) -> None:
        super().__init__(state)
        self._client = client

    def chunks(self, *, after: int = -1) -> Iterator[Chunk]:
        """The chunks after the one of an index. A broken connection is taken up where it broke.

        Raises JobEnded where the job fails or is cancelled, after the chunks that it had.
        """
        sound = SoundStream(self._client.url, self.id, after)
        yield from self._client._listen(sound)
        self.state = sound.end

    __iter__ = chunks

    def save(self, path: str | Path) -> Path:
        """Write the sound to a WAV file as it comes; a failure leaves no file. Raises JobEnded, OSError."""
        with WavFile(path, *self.shape()) as file:
            for chunk in self:
                file.write(chunk.pcm)
        return Path(path)

    def wait(self, timeout: float | None = None) -> Job:
        """This job, once it is completed. Raises JobEnded; NotInTime after `timeout` seconds."""
        self.state = self._client._run(exchanges.wait(self.id, timeout))
        return self

    def refresh(self) -> Job:
        """This job, as it is now."""
        self.state = self._client._run(exchanges.look(self.id))
        return self

    def cancel(self) -> Job:
        """This job, ended; one that is over stays as it is."""
        self.state = self._client._run(exchanges.cancel(self.id))
        return self

    def purge(self) -> None:
        """Cancel and forget: nothing is left of the job."""
        self._client._run(exchanges.purge(self.id))

    def events(self) -> list[dict[str, Any]]:
        """The job's log so far."""
        return self._client._run(exchanges.events(self.id))
