"""Sound as it is made, for any number of listeners, from any time on."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import time

import pytest
import soundfile
import websockets

from tests.api.conftest import serving
from tests.api.player import SAMPLES, song
from tests.waiting import PATIENCE_S, until


class Heard:
    """What one subscriber of an event stream got."""

    def __init__(self) -> None:
        self.chunks: list[dict] = []
        self.end: str | None = None
        self.last_id: str | None = None
        self.comments = 0
        self.job: dict | None = None

    @property
    def pcm(self) -> bytes:
        return b"".join(base64.b64decode(chunk["audio"]) for chunk in self.chunks)


async def listen(api, job, *, last_event_id=None, chunks=None, heard=None) -> Heard:
    """Follow the event stream to its end, or until so many chunks have come."""
    heard = heard or Heard()
    headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_event_id} if last_event_id else {})
    async with api.http.stream("GET", job["links"]["stream"], headers=headers) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        event = id_ = None
        async for line in answer.aiter_lines():
            if line.startswith(":"):
                heard.comments += 1
            elif line.startswith("id: "):
                id_ = line[4:]
            elif line.startswith("event: "):
                event = line[7:]
            elif line.startswith("data: "):
                heard.last_id = id_
                if event == "audio.chunk":
                    heard.chunks.append(json.loads(line[6:]))
                    if len(heard.chunks) == chunks:
                        return heard
                else:
                    heard.end, heard.job = event, json.loads(line[6:])
    return heard


async def subscribers(api, count: int) -> bool:
    """Whether so many hear a stream of events now."""
    return f'songline_stream_subscribers{{kind="sse"}} {count}.0' in (await api.http.get("/metrics")).text


async def test_chunks_come_as_they_are_made(api):
    job = await api.submit()
    heard = Heard()
    listening = asyncio.create_task(listen(api, job, heard=heard))
    player = api.player(job)
    player.admit(5)
    for count in (1, 2):
        player.sound(1)

        async def came(count=count):
            return len(heard.chunks) == count

        await until(came)
        assert not listening.done()
    player.sound(1, last=True)
    player.complete()
    await asyncio.wait_for(listening, PATIENCE_S)
    assert heard.pcm == song(5, 3)
    assert heard.end == "completed" and heard.job["status"] == "completed" and heard.last_id == "end"
    for index, chunk in enumerate(heard.chunks):
        assert (chunk["index"], chunk["start_sample"], chunk["samples"]) == (index, index * SAMPLES, SAMPLES)
        assert chunk["sha256"] == hashlib.sha256(base64.b64decode(chunk["audio"])).hexdigest()
        assert (chunk["sample_rate"], chunk["channels"]) == (32_000, 2)


async def test_a_stream_resumes_without_gap_or_repeat(api):
    job = await api.played(6)
    whole = b""
    heard, last = await listen(api, job, chunks=2), None
    while True:
        whole, last = whole + heard.pcm, heard.last_id
        if heard.end:
            break
        heard = await listen(api, job, last_event_id=last, chunks=2)
    assert whole == song(5, 6)
    answer = await api.http.get(job["links"]["stream"], headers={"Last-Event-ID": last})
    assert answer.status_code == 204


async def test_any_number_listen_from_any_time_on(api):
    job = await api.submit()
    player = api.player(job)
    early = [asyncio.create_task(listen(api, job)) for _ in range(8)]
    player.admit(5)
    player.sound(2)
    middle = [asyncio.create_task(listen(api, job)) for _ in range(8)]
    await asyncio.sleep(0.2)
    player.sound(2, last=True)
    player.complete()
    late = [asyncio.create_task(listen(api, job)) for _ in range(8)]
    for heard in await asyncio.wait_for(asyncio.gather(*early, *middle, *late), PATIENCE_S):
        assert heard.pcm == song(5, 4) and heard.end == "completed"


@pytest.mark.parametrize("end", ["failed", "cancelled"])
async def test_the_last_event_tells_how_it_ended(api, end):
    job = await api.submit()
    player = api.player(job)
    player.admit(5)
    player.sound(1)
    listening = asyncio.create_task(listen(api, job))
    await asyncio.sleep(0.1)
    if end == "failed":
        player.fail()
    else:
        await api.http.delete(job["links"]["cancel"])
    heard = await asyncio.wait_for(listening, PATIENCE_S)
    assert heard.end == end and heard.pcm == song(5, 1)


async def test_a_purged_job_ends_its_streams(api):
    job = await api.submit()
    listening = asyncio.create_task(listen(api, job))
    await until(lambda: subscribers(api, 1))
    await api.http.delete(job["links"]["self"], params={"purge": True})
    assert (await asyncio.wait_for(listening, PATIENCE_S)).end in ("expired", "cancelled")


async def test_raw_sound_by_accept_or_by_format(api):
    job = await api.played(3)
    url = job["links"]["stream"]
    raw = await api.http.get(url, headers={"Accept": "audio/pcm"})
    assert raw.headers["content-type"] == "audio/pcm;rate=32000;channels=2" and raw.content == song(5, 3)
    assert (await api.http.get(url, params={"format": "pcm", "after": 0})).content == song(5, 3)[4 * SAMPLES :]
    wav = await api.http.get(url, headers={"Accept": "audio/wav;q=0.9"})
    assert wav.headers["content-type"] == "audio/wav" and wav.content[44:] == song(5, 3)
    assert wav.content[4:8] == wav.content[40:44] == b"\xff" * 4
    for format_ in ("flac", "mp3", "opus"):
        encoded = (await api.http.get(url, params={"format": format_})).content
        if format_ == "flac":  # libsndfile wants to know the length, which the header of a stream cannot say
            encoded = encoded[:22] + (3 * SAMPLES).to_bytes(4, "big") + encoded[26:]
        samples, _ = soundfile.read(io.BytesIO(encoded), dtype="int16")
        assert samples.shape[1] == 2 and len(samples) >= 3 * SAMPLES
        if format_ == "flac":
            assert samples.tobytes() == song(5, 3)
    assert (await api.http.get(url, params={"format": "aac"})).json()["error"]["param"] == "format"
    for accept, kind in {
        "text/event-stream;q=0.5, audio/wav": "audio/wav",
        "audio/wav;q=0, text/event-stream": "text/event-stream",
        "audio/*;q=0.1, audio/flac;q=0.2": "audio/flac",
        "audio/pcm, audio/wav": "audio/pcm",
    }.items():
        answer = await api.http.get(url, headers={"Accept": accept})
        assert answer.headers["content-type"].startswith(kind), accept
    for accept in ("image/png", "image/png, */*;q=0"):
        assert (await api.http.get(url, headers={"Accept": accept})).status_code == 406
    for after in (-2, 10**9, 10**30):
        assert (await api.http.get(url, params={"after": after})).json()["error"]["param"] == "after"
    assert (await api.http.get(url, headers={"Last-Event-ID": "x"})).status_code == 400


async def test_a_raw_stream_of_a_job_that_fails_is_cut_not_ended(api):
    import httpx

    job = await api.submit()
    player = api.player(job)
    player.admit(5)
    player.sound(1)
    got = b""
    with pytest.raises(httpx.RemoteProtocolError):
        async with api.http.stream("GET", job["links"]["stream"], params={"format": "pcm"}) as answer:
            async for piece in answer.aiter_raw():
                got += piece
                if len(got) == len(song(5, 1)):
                    player.fail()
    assert got == song(5, 1)
    answer = await api.http.get(job["links"]["stream"], params={"format": "pcm"})
    assert answer.status_code == 409 and answer.json()["error"]["code"] == "job_failed"
    assert (await listen(api, job)).end == "failed"


async def test_silence_is_filled_with_comments(broker):
    async with serving(broker, keep_alive_s=0.2) as api:
        job = await api.submit()
        heard = Heard()
        began = time.monotonic()
        listening = asyncio.create_task(listen(api, job, heard=heard))
        await until(lambda: heard.comments >= 4)
        assert heard.comments <= (time.monotonic() - began) / 0.2 and not heard.chunks
        api.player(job).play(5, 1)
        await asyncio.wait_for(listening, PATIENCE_S)


async def test_a_slow_listener_holds_up_nobody(api):
    job = await api.played(60)  # more than the sockets' buffers hold
    reader, writer = await asyncio.open_connection("127.0.0.1", int(api.url.rsplit(":", 1)[1]), limit=1024)
    writer.write(f"GET {job['links']['stream']} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await writer.drain()
    await reader.readexactly(100)  # and no more
    others = asyncio.gather(*(listen(api, job) for _ in range(4)))
    assert all(heard.pcm == song(5, 60) for heard in await asyncio.wait_for(others, PATIENCE_S))
    writer.close()


async def test_subscribers_are_counted_and_let_go(api):
    job = await api.submit()
    listening = [asyncio.create_task(listen(api, job)) for _ in range(3)]
    await until(lambda: subscribers(api, 3))
    for task in listening:
        task.cancel()
    await until(lambda: subscribers(api, 0))
    assert (await api.http.get(job["links"]["self"])).json()["status"] == "queued"


async def test_a_websocket_has_the_same_sound(api):
    job = await api.submit()
    pcm, metas, end = b"", [], None

    async def follow() -> None:
        nonlocal pcm, end
        async with websockets.connect(api.ws_url + job["links"]["ws"]) as socket:
            async for message in socket:
                if isinstance(message, bytes):
                    assert hashlib.sha256(message).hexdigest() == metas[-1]["sha256"]
                    pcm += message
                elif (said := json.loads(message))["type"] == "audio.chunk":
                    metas.append(said)
                else:
                    end = said

    following = asyncio.create_task(follow())
    await asyncio.sleep(0.1)
    await asyncio.to_thread(api.player(job).play, 5, 3)
    await asyncio.wait_for(following, PATIENCE_S)
    assert pcm == song(5, 3) and [meta["index"] for meta in metas] == [0, 1, 2]
    assert end["type"] == "completed" and end["job"]["id"] == job["id"]
    async with websockets.connect(api.ws_url + job["links"]["ws"] + "?after=1") as socket:
        assert json.loads(await socket.recv())["index"] == 2
    async with websockets.connect(api.ws_url + job["links"]["ws"] + "?after=-1") as socket:
        assert json.loads(await socket.recv())["index"] == 0
        assert "sec-websocket-extensions" not in socket.response.headers  # sound is not compressed
    for after in ("-2", "x", "9" * 11):
        with pytest.raises(websockets.InvalidStatus) as refused:
            await websockets.connect(f"{api.ws_url}{job['links']['ws']}?after={after}")
        error = json.loads(refused.value.response.body)["error"]
        assert (refused.value.response.status_code, error["param"]) == (400, "after")


async def test_bytes_of_sound_are_counted_without_what_is_around_them(api):
    job = await api.played(3)
    await listen(api, job)
    await api.http.get(job["links"]["stream"], params={"format": "pcm"})
    await api.http.get(job["links"]["events"], headers={"Accept": "text/event-stream"})
    text = (await api.http.get("/metrics")).text
    for kind in ("sse", "pcm"):
        assert f'songline_stream_bytes_total{{kind="{kind}"}} {len(song(5, 3))}.0' in text
    assert 'songline_stream_bytes_total{kind="events"}' not in text


async def test_a_websocket_to_nothing_is_refused_with_an_answer(api):
    job = await api.submit()
    api.player(job).expire()
    for id_, status in ((job["id"], 410), ("job_" + "a" * 32, 404)):
        with pytest.raises(websockets.InvalidStatus) as refused:
            await websockets.connect(f"{api.ws_url}/v1/jobs/{id_}/ws")
        assert refused.value.response.status_code == status
        assert json.loads(refused.value.response.body)["error"]["code"].startswith("job_")


async def test_a_websocket_that_leaves_is_let_go(api):
    job = await api.submit()
    async with websockets.connect(api.ws_url + job["links"]["ws"]):
        pass

    async def gone():
        return 'songline_stream_subscribers{kind="ws"} 0.0' in (await api.http.get("/metrics")).text

    await until(gone)


async def test_a_stopping_api_ends_its_streams_and_cancels_nothing(broker):
    async with serving(broker) as api:
        job = await api.submit()
        listening = asyncio.create_task(listen(api, job))
        await until(lambda: subscribers(api, 1))
        began = time.monotonic()
        api.server.should_exit = True
        await asyncio.gather(listening, return_exceptions=True)
        assert time.monotonic() - began < 30  # half its grace
    async with serving(broker) as api:
        assert (await api.http.get(job["links"]["self"])).json()["status"] == "queued"
