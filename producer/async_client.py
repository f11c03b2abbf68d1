"""The client for programs with an event loop: `AsyncSongline`. All that it knows but the I/O is in `exchanges`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import httpx

from producer import exchanges, orders
from producer.client import DEFAULT_URL
from producer.exchanges import Exchange, State
from producer.job_record import JobRecord
from producer.sound import Chunk, SoundStream
from producer.wav import WavFile

T = TypeVar("T")


class AsyncSongline:
    """The api at a URL. Every method raises SonglineError: Unreachable, Refused, and what else it says."""

    def __init__(
        self, url: str = DEFAULT_URL, *, api_key: str | None = None, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.url = url
        with exchanges.reaching(url):
            self._http = httpx.AsyncClient(
                base_url=url, headers=exchanges.headers(api_key), timeout=exchanges.TIMEOUT, transport=transport
            )

    async def say(
        self,
        text: str,
        *,
        model: str = orders.SPEECH_MODEL,
        voice: str | None = None,
        instructions: str | None = None,
        seed: int | None = None,
        **fields: Any,
    ) -> AsyncJob:
        """Have a text spoken: a job that has begun. `fields` are the model's own; GET /v1/models lists them."""
        return await self.submit(
            orders.speech(text, model=model, voice=voice, instructions=instructions, seed=seed, **fields)
        )

    async def sing(
        self,
        lyrics: str,
        *,
        caption: str | None = None,
        model: str = orders.SONG_MODEL,
        seed: int | None = None,
        **fields: Any,
    ) -> AsyncJob:
        """Have lyrics sung: a job that has begun. `max_new_tokens` bounds its length, in frames."""
        return await self.submit(orders.song(lyrics, caption=caption, model=model, seed=seed, **fields))

    async def submit(self, body: Mapping[str, Any], *, idempotency_key: str | None = None) -> AsyncJob:
        """Send a request as POST /v1/jobs takes it. The same key again gives the same job."""
        return AsyncJob(self, await self._run(exchanges.submit(body, idempotency_key)))

    async def job(self, id: str) -> AsyncJob:
        return AsyncJob(self, await self._run(exchanges.look(id)))

    async def jobs(self, *, status: str | None = None, model: str | None = None, limit: int = 20) -> list[AsyncJob]:
        """Your jobs, newest first."""
        return [AsyncJob(self, state) for state in await self._run(exchanges.jobs(status, model, limit))]

    async def cancel(self, id: str) -> AsyncJob:
        """End a job; one that is over stays as it is."""
        return AsyncJob(self, await self._run(exchanges.cancel(id)))

    async def models(self) -> list[dict[str, Any]]:
        """The models that are served: id, sample_rate, voices, fields, …"""
        return await self._run(exchanges.models())

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncSongline:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, exchange: Exchange[T]) -> T:
        try:
            call = next(exchange)
            while True:
                with exchanges.reaching(self.url):
                    answer = await self._http.request(call.verb, call.path, **call.options())
                call = exchange.send(exchanges.answered(answer))
        except StopIteration as done:
            return done.value

    async def _listen(self, sound: SoundStream) -> AsyncGenerator[Chunk, None]:
        while True:
            broken = None
            try:
                async with self._http.stream("GET", sound.path, headers=sound.headers) as answer:
                    if answer.is_error:
                        await answer.aread()
                    exchanges.checked(answer)
                    async for line in answer.aiter_lines():
                        if (chunk := sound.line(line)) is not None:
                            yield chunk
                        if sound.end:
                            return
            except httpx.HTTPError as error:
                broken = error
            await asyncio.sleep(sound.pause(broken))


class AsyncJob(JobRecord):
    """A job. Iterating over it gives its sound, chunk by chunk as it is made, from the first one on."""

    def __init__(self, client: AsyncSongline, state: State) -> None:
        super().__init__(state)
        self._client = client

    async def chunks(self, *, after: int = -1) -> AsyncIterator[Chunk]:
        """The chunks after the one of an index. A broken connection is taken up where it broke.

        Raises JobEnded where the job fails or is cancelled, after the chunks that it had.
        """
        sound = SoundStream(self._client.url, self.id, after)
        async with aclosing(self._client._listen(sound)) as heard:
            async for chunk in heard:
                yield chunk
        self.state = sound.end

    __aiter__ = chunks

    async def save(self, path: str | Path) -> Path:
        """Write the sound to a WAV file as it comes; a failure leaves no file. Raises JobEnded, OSError."""
        with WavFile(path, *self.shape()) as file:
            async for chunk in self:
                await asyncio.to_thread(file.write, chunk.pcm)
        return Path(path)

    async def wait(self, timeout: float | None = None) -> AsyncJob:
        """This job, once it is completed. Raises JobEnded; NotInTime after `timeout` seconds."""
        self.state = await self._client._run(exchanges.wait(self.id, timeout))
        return self

    async def refresh(self) -> AsyncJob:
        """This job, as it is now."""
        self.state = await self._client._run(exchanges.look(self.id))
        return self

    async def cancel(self) -> AsyncJob:
        """This job, ended; one that is over stays as it is."""
        self.state = await self._client._run(exchanges.cancel(self.id))
        return self

    async def purge(self) -> None:
        """Cancel and forget: nothing is left of the job."""
        await self._client._run(exchanges.purge(self.id))

    async def events(self) -> list[dict[str, Any]]:
        """The job's log so far."""
        return await self._client._run(exchanges.events(self.id))
