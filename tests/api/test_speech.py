"""OpenAI's speech route, by raw HTTP and by the official client."""

from __future__ import annotations

import asyncio
import base64
import io
import json

import openai
import pytest
import soundfile

from broker_schemas import keys
from tests.api.conftest import serving
from tests.api.player import Player, song
from tests.waiting import PATIENCE_S, until

BODY = {"model": "hum", "input": "la", "seed": 5}


async def newest_job(api, *, besides=frozenset()) -> str:
    """Id of the job that a request in flight has made."""

    async def found():
        live = {job.decode() for job in api.broker.client().zrange(keys.LIVE, 0, -1)} - set(besides)
        return next(iter(live), None)

    job = await until(found)

    def submitted() -> bool:
        rung = api.broker.client().xrange(keys.bell("hum", keys.TALKER))
        return any(fields[b"job"].decode() == job for _, fields in rung)

    await until(submitted)  # the bell is the last that it does
    return job


async def answered(api, request, windows=3, seed=5):
    """The result of a request in flight, whose job is played meanwhile."""
    task = asyncio.ensure_future(request)
    player = Player(api.broker, await newest_job(api))
    await asyncio.to_thread(player.play, seed, windows)
    return await asyncio.wait_for(task, PATIENCE_S)


@pytest.fixture
async def client(api):
    async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_the_answer_is_the_whole_file(api):
    answer = await answered(api, api.http.post("/v1/audio/speech", json=BODY | {"response_format": "wav"}))
    assert answer.status_code == 200 and answer.headers["content-type"] == "audio/wav"
    samples, rate = soundfile.read(io.BytesIO(answer.content), dtype="int16")
    assert rate == 32_000 and samples.tobytes() == song(5, 3)
    job = (await api.http.get(f"/v1/jobs/{answer.headers['songline-job']}")).json()
    assert job["status"] == "completed" and str(job["seed"]) == answer.headers["songline-seed"]


async def test_mp3_is_the_default_and_aac_is_refused(api):
    answer = await answered(api, api.http.post("/v1/audio/speech", json=BODY))
    assert answer.headers["content-type"] == "audio/mpeg"
    assert soundfile.read(io.BytesIO(answer.content))[1] == 32_000
    aac = await api.http.post("/v1/audio/speech", json=BODY | {"response_format": "aac"})
    assert aac.status_code == 400 and aac.json()["error"]["param"] == "response_format"
    assert "mp3" in aac.json()["error"]["message"]


@pytest.mark.parametrize("fields", [{"stream": True}, {"stream_format": "sse"}])
async def test_openais_events_carry_the_sound_as_it_is_made(api, fields):
    deltas, done = [], None

    async def listen() -> None:
        nonlocal done
        body = BODY | {"response_format": "pcm"} | fields
        async with api.http.stream("POST", "/v1/audio/speech", json=body) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    event = json.loads(line[6:])
                    if event["type"] == "speech.audio.delta":
                        deltas.append(base64.b64decode(event["audio"]))
                    else:
                        done = event

    listening = asyncio.create_task(listen())
    player = Player(api.broker, await newest_job(api))
    player.admit(5)
    player.sound(1)

    async def first():
        return deltas

    await until(first)
    assert not listening.done()
    player.sound(2, last=True)
    player.complete()
    await asyncio.wait_for(listening, PATIENCE_S)
    assert b"".join(deltas) == song(5, 3)
    assert done["type"] == "speech.audio.done" and done["usage"]["output_tokens"] == 300


async def test_raw_streams_grow_as_the_sound_is_made(api):
    got = b""

    async def listen() -> None:
        nonlocal got
        body = BODY | {"response_format": "pcm", "stream_format": "audio"}
        async with api.http.stream("POST", "/v1/audio/speech", json=body) as answer:
            async for piece in answer.aiter_raw():
                got += piece

    listening = asyncio.create_task(listen())
    player = Player(api.broker, await newest_job(api))
    player.admit(5)
    player.sound(1)

    async def first():
        return got == song(5, 1)

    await until(first)
    assert not listening.done()
    player.sound(1, last=True)
    player.complete()
    await asyncio.wait_for(listening, PATIENCE_S)
    assert got == song(5, 2)


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"stream_format": "audio"}])
@pytest.mark.parametrize("sounding", [False, True])
async def test_a_dropped_connection_cancels_the_job(api, fields, sounding):
    request = asyncio.create_task(api.http.post("/v1/audio/speech", json=BODY | fields))
    job = await newest_job(api)
    if sounding:
        player = Player(api.broker, job)
        player.admit(5)
        player.sound(1)
    await asyncio.sleep(0.2)
    request.cancel()

    async def cancelled():
        state = (await api.http.get(f"/v1/jobs/{job}")).json()
        return state if state["status"] == "cancelled" else None

    assert (await until(cancelled))["cancelled_by"] == "client disconnected"


async def test_a_dropped_connection_with_an_idempotency_key_finds_its_job_again(api):
    headers = {"Idempotency-Key": "again"}
    request = asyncio.create_task(api.http.post("/v1/audio/speech", json=BODY, headers=headers))
    job = await newest_job(api)
    request.cancel()
    await asyncio.sleep(0.3)
    answer = await answered(api, api.http.post("/v1/audio/speech", json=BODY, headers=headers))
    assert answer.status_code == 200 and answer.headers["songline-job"] == job


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"stream_format": "audio"}])
async def test_an_api_that_shuts_down_cancels_nothing(broker, fields):
    async with serving(broker) as api:
        request = asyncio.create_task(api.http.post("/v1/audio/speech", json=BODY | fields))
        job = await newest_job(api)
        await asyncio.sleep(0.2)
        api.server.should_exit = True
        answer = (await asyncio.gather(request, return_exceptions=True))[0]
        if not fields:
            assert answer.status_code == 503 and answer.json()["error"]["code"] == "api_stopping"
            assert answer.headers["x-should-retry"] == "false" and job in answer.json()["error"]["message"]
    async with serving(broker) as api:
        assert (await api.http.get(f"/v1/jobs/{job}")).json()["status"] == "queued"


async def test_a_failed_job_answers_with_its_error(api):
    for retryable, status in ((False, 500), (True, 503)):
        request = asyncio.create_task(api.http.post("/v1/audio/speech", json=BODY))
        Player(api.broker, await newest_job(api)).fail(retryable=retryable)
        answer = await asyncio.wait_for(request, PATIENCE_S)
        assert answer.status_code == status and answer.json()["error"]["code"] == "no_frames"
        assert answer.headers.get("x-should-retry") == (None if retryable else "false")
    request = asyncio.create_task(api.http.post("/v1/audio/speech", json=BODY | {"stream_format": "audio"}))
    Player(api.broker, await newest_job(api)).fail()
    assert (await asyncio.wait_for(request, PATIENCE_S)).status_code == 500
    request = asyncio.create_task(api.http.post("/v1/audio/speech", json=BODY | {"stream": True}))
    Player(api.broker, await newest_job(api)).fail()
    assert '"code": "no_frames"' in (await asyncio.wait_for(request, PATIENCE_S)).text.replace('":"', '": "')


async def test_a_synchronous_job_cancelled_by_another_is_409(api):
    request = asyncio.create_task(api.http.post("/v1/audio/speech", json=BODY))
    await api.http.delete(f"/v1/jobs/{await newest_job(api)}")
    answer = await asyncio.wait_for(request, PATIENCE_S)
    assert answer.status_code == 409 and answer.json()["error"]["code"] == "job_cancelled"


# --- the official client --------------------------------------------------------------------------------------------


async def test_openais_client_creates_speech(api, client):
    request = client.audio.speech.create(
        model="hum", input="la", voice="default", instructions="soft", response_format="wav", extra_body={"seed": 9}
    )
    speech = await answered(api, request, seed=9)
    samples, _ = soundfile.read(io.BytesIO(speech.content), dtype="int16")
    assert samples.tobytes() == song(9, 3)


async def test_openais_client_streams(api, client):
    async def listen() -> bytes:
        request = client.audio.speech.with_streaming_response.create(
            model="hum", input="la", voice="default", response_format="pcm", stream_format="audio"
        )
        async with request as answer:
            return b"".join([piece async for piece in answer.iter_bytes()])

    assert await answered(api, listen()) == song(5, 3)


async def test_openais_client_that_leaves_cancels(api, client):
    task = asyncio.create_task(client.audio.speech.create(model="hum", input="la", voice="default"))
    job = await newest_job(api)
    await asyncio.sleep(0.1)
    task.cancel()

    async def cancelled():
        return (await api.http.get(f"/v1/jobs/{job}")).json()["status"] == "cancelled"

    await until(cancelled)


async def test_openais_client_knows_the_errors_and_the_models(api, client):
    with pytest.raises(openai.BadRequestError) as refused:
        await client.audio.speech.create(model="hum", input="la", voice="alloy")
    assert refused.value.param == "voice" and "leave voice out" in str(refused.value)
    with pytest.raises(openai.NotFoundError) as missing:
        await client.audio.speech.create(model="nothing", input="la", voice="default")
    assert missing.value.code == "model_not_found"
    assert [model.id async for model in client.models.list()] == ["hum"]
    assert (await client.models.retrieve("hum")).owned_by == "songline"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("nothing")


async def test_openais_synchronous_client_and_its_key(broker):
    async with serving(broker, api_keys=("anna:key-a",)) as api:
        with openai.OpenAI(base_url=f"{api.url}/v1", api_key="key-a", max_retries=0) as client:
            request = asyncio.to_thread(
                client.audio.speech.create, model="hum", input="la", voice="default", response_format="pcm"
            )
            assert (await answered(api, request)).content == song(5, 3)
        with openai.OpenAI(base_url=f"{api.url}/v1", api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError):
                await asyncio.to_thread(client.audio.speech.create, model="hum", input="la", voice="default")


async def test_openais_client_is_told_that_the_queue_is_full(broker):
    from producer.submit import Limits

    async with serving(broker, limits=Limits(max_jobs=0)) as api:
        async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0) as client:
            with pytest.raises(openai.RateLimitError) as full:
                await client.audio.speech.create(model="hum", input="la", voice="default")
            assert int(full.value.response.headers["retry-after"]) >= 1
