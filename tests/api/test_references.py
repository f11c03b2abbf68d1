"""What a cloning model's request names or brings becomes a recording's name in its job; nothing else of it stays."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import openai
import pytest

from api.settings import ApiSettings, VoiceLimits
from broker_schemas import keys
from broker_schemas.contract import BadField, Order
from broker_schemas.recordings import RecordingLimits
from broker_schemas.voices import read_sound
from producer.submit import Limits
from tests.api.conftest import serving
from tests.api.player import HumContract, song
from tests.api.test_errors import shaped
from tests.api.test_voices import SOUND, names, upload, wav

SAID = "The river knows the way."
SHA256 = hashlib.sha256(SOUND).hexdigest()
BASE64 = base64.b64encode(SOUND).decode()
BODY = {"model": "parrot", "input": "la", "seed": 5}


class ParrotContract(HumContract):
    """A model that clones. A transcript makes the clone a closer one."""

    model = "parrot"
    clones = True
    fields = frozenset({"voice", "ref_audio", "ref_text"})

    def accept(self, body: Mapping[str, Any]) -> Order:
        voice, sent = body.get("voice"), body.get("ref_audio")
        assert not isinstance(sent, str) or len(sent) == 64, "the recording's name is all that a contract sees"
        if sent is not None and voice not in (None, "default"):
            raise BadField("voice", "voice and ref_audio are two voices: send one.")
        if not isinstance(sent if voice in (None, "default") else voice, str):
            raise BadField("voice", "voice or ref_audio must say whose voice it is to be.")
        params = {"voice": voice or "", "ref_audio": sent or "", "ref_text": body.get("ref_text", "")}
        return Order(input=body["input"], params=params, max_frames=9, reserve_bytes=1_000_000)


class ChoirContract(HumContract):
    """A model with voices of its own."""

    model = "choir"
    voices = ("vera", "boris")
    fields = frozenset({"voice"})

    def accept(self, body: Mapping[str, Any]) -> Order:
        if body.get("voice") not in self.voices:
            raise BadField("voice", f"voice must be one of {', '.join(self.voices)}.")
        return Order(input=body["input"], params={"voice": body["voice"]}, max_frames=9, reserve_bytes=1_000)


CONTRACTS = {"parrot": ParrotContract(), "choir": ChoirContract(), "hum": HumContract()}


@pytest.fixture
async def api(broker):
    async with serving(broker, CONTRACTS) as api:
        yield api


@pytest.fixture
async def redis_api(real_broker):
    async with serving(real_broker, CONTRACTS) as api:
        yield api


async def post(api, headers=None, **fields):
    return await api.http.post("/v1/jobs", json=BODY | fields, headers=headers)


async def params(api, **fields) -> dict:
    answer = await post(api, **fields)
    assert answer.status_code == 202, answer.text
    return answer.json()["params"]


# --- uploaded voices ------------------------------------------------------------------------------------------------


async def test_a_voice_becomes_its_recording(api):
    await upload(api, ref_text=SAID)
    assert await params(api, voice=" ANNA ") == {"voice": "", "ref_audio": SHA256, "ref_text": SAID}
    assert not api.broker.client().exists(keys.sent_recording(SHA256)), "the voice has it"
    assert read_sound(api.broker.client(), SHA256) == SOUND


async def test_a_requests_own_transcript_comes_before_the_voices(redis_api):
    await upload(redis_api, ref_text=SAID)
    assert (await params(redis_api, voice="anna", ref_text="La."))["ref_text"] == "La."
    assert (await params(redis_api, voice="anna", ref_text=""))["ref_text"] == SAID


async def test_openais_other_way_to_name_a_voice(redis_api):
    await upload(redis_api)
    assert await params(redis_api, voice={"id": "anna"}) == await params(redis_api, voice="anna")
    assert (await params(redis_api, model="choir", voice={"id": "vera"}))["voice"] == "vera"
    assert shaped(await post(redis_api, voice={"id": "anna", "x": 1}), 400)["param"] == "voice"


async def test_an_unknown_voice_is_refused_with_those_there_are(redis_api):
    for path in ("/v1/jobs", "/v1/audio/speech"):
        error = shaped(await redis_api.http.post(path, json=BODY | {"voice": "alloy"}), 400)
        assert error["param"] == "voice" and "/v1/audio/voices" in error["message"]
    for name in ("bert", "anna"):
        await upload(redis_api, name)
    assert "anna, bert;" in shaped(await post(redis_api, voice="alloy"), 400)["message"]
    assert "vera, boris" in shaped(await post(redis_api, model="choir", voice="alloy"), 400)["message"]


async def test_openais_client_is_told_which_voices_there_are(redis_api):
    await upload(redis_api)
    async with openai.AsyncOpenAI(base_url=f"{redis_api.url}/v1", api_key="none", max_retries=0) as client:
        for model, there_are in (("choir", "vera, boris"), ("parrot", "use one of anna;")):
            with pytest.raises(openai.BadRequestError, match=there_are) as refused:
                await client.audio.speech.create(model=model, voice="alloy", input="la")
            assert refused.value.param == "voice"


async def test_a_voice_is_its_owners_alone(broker):
    async with serving(broker, CONTRACTS, api_keys=("anna:key-a", "bert:key-b")) as api:
        anna, bert = ({"Authorization": f"Bearer {key}"} for key in ("key-a", "key-b"))
        await upload(api, "mine", headers=anna)
        await upload(api, "his", wav(300), headers=bert)
        assert (await post(api, headers=anna, voice="mine")).status_code == 202
        refused = shaped(await post(api, headers=bert, voice="mine"), 400)
        assert refused["message"].count("mine") == 1 and "use one of his;" in refused["message"]


async def test_without_a_voice_the_contract_says_what_is_amiss(redis_api):
    for fields in ({}, {"voice": "default"}, {"voice": 3}, {"ref_audio": 3}):
        assert "whose voice" in shaped(await post(redis_api, **fields), 400)["message"], fields


async def test_a_voice_cannot_be_called_what_leaves_it_to_the_model(redis_api):
    assert shaped(await upload(redis_api, "Default"), 400)["param"] == "name"


# --- recordings in a request ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        BASE64, f"data:audio/wav;base64,{BASE64}", f"DATA:;BASE64,{BASE64}",
        "\n".join(BASE64[start : start + 76] for start in range(0, len(BASE64), 76)),
    ],
    ids=["base64", "data", "bare data", "lines"],
)  # fmt: skip
async def test_a_recording_is_named_by_its_content(api, sent):
    assert await params(api, ref_audio=sent, ref_text=SAID) == {"voice": "", "ref_audio": SHA256, "ref_text": SAID}
    assert read_sound(api.broker.client(), SHA256) == SOUND


async def test_the_same_recording_is_the_same_request_however_it_came(api):
    await upload(api, ref_text=SAID)
    named = await params(api, voice="anna")
    assert await params(api, ref_audio=BASE64, ref_text=SAID, voice="default") == named


async def test_the_sound_itself_is_nowhere_in_the_job(redis_api):
    sound = wav(seconds=0.6)
    job = (await post(redis_api, ref_audio=base64.b64encode(sound).decode())).json()
    client = redis_api.broker.client()
    held = sum(client.memory_usage(key) or 0 for key in keys.job_keys(job["id"]))
    assert held < 10_000 < len(sound)


async def test_a_recording_outlives_its_jobs_deadline(api):
    client = api.broker.client()

    def left_s() -> float:
        return client.pttl(keys.sent_recording(SHA256)) / 1000

    await post(api, ref_audio=BASE64, deadline_s=100)
    assert 100 < left_s() < 200
    await post(api, ref_audio=BASE64, deadline_s=1_000)
    assert 1_000 < left_s() < 1_100
    await post(api, ref_audio=BASE64, deadline_s=100)
    assert left_s() > 990, "the longer time stands"
    await post(api, ref_audio=base64.b64encode(wav(300)).decode())
    other = keys.sent_recording(hashlib.sha256(wav(300)).hexdigest())
    assert client.pttl(other) / 1000 > ApiSettings().deadline_s


async def test_deleting_a_voice_takes_no_requests_recording(api):
    await upload(api)
    await post(api, ref_audio=BASE64)
    await api.http.delete("/v1/audio/voices/anna")
    assert read_sound(api.broker.client(), SHA256) == SOUND
    api.broker.client().delete(keys.sent_recording(SHA256))
    with pytest.raises(LookupError):
        read_sound(api.broker.client(), SHA256)


async def test_a_job_names_the_voice_that_it_was_made_with(api):
    await upload(api, "Anna")
    uploaded = (await post(api, voice=" ANNA ")).json()
    brought = (await post(api, ref_audio=BASE64)).json()
    own = (await post(api, model="choir", voice="vera")).json()
    none = (await post(api, model="hum")).json()
    assert [job["voice"] for job in (uploaded, brought, own, none)] == ["Anna", None, "vera", None]
    assert uploaded["params"] == brought["params"], "what it sounds like is the recording's affair alone"
    for job in (uploaded, brought):
        shown = await api.http.get(job["links"]["self"])
        assert shown.json()["voice"] == job["voice"] and BASE64[:64] not in shown.text


async def test_what_a_request_brings_is_no_voice(redis_api):
    await post(redis_api, ref_audio=BASE64)
    assert await names(redis_api) == ["boris", "vera"]


@pytest.mark.parametrize(
    ("sent", "code", "says"),
    [
        ("%%%", "invalid_value", "not base64"),
        (BASE64[:-3], "invalid_value", "padding"),
        ("data:audio/wav,abc", "invalid_value", "data:audio/wav;base64"),
        ("data:audio/wav;base64", "invalid_value", "data:audio/wav;base64"),
        ("file:///etc/passwd", "invalid_value", "https"),
        ("ftp://example.com/a.wav", "invalid_value", "https"),
        ("https://example.com/a.wav", "invalid_value", "cannot be a URL here"),
        ("HTTP://example.com/a.wav", "invalid_value", "cannot be a URL here"),
        (base64.b64encode(b"RIFF" * 99).decode(), "invalid_recording", "cannot be read"),
        (base64.b64encode(wav(seconds=0.2)).decode(), "invalid_recording", "0.20 s"),
    ],
)  # fmt: skip
async def test_what_is_no_recording_is_refused_and_kept_nowhere(redis_api, sent, code, says):
    error = shaped(await post(redis_api, ref_audio=sent), 400)
    assert (error["param"], error["code"]) == ("ref_audio", code)
    assert says in error["message"] and len(error["message"]) < 400
    assert not redis_api.broker.client().keys("*sent*")


async def test_a_refused_request_keeps_no_recording(redis_api):
    await upload(redis_api)
    for fields in ({"voice": "anna"}, {"tempo": 3}, {"model": "hum"}, {"deadline_s": 0}):
        shaped(await post(redis_api, ref_audio=BASE64, **fields), 400)
    assert not redis_api.broker.client().keys("*sent*")


async def test_a_job_that_never_fits_is_refused_before_its_recording_is_kept(real_broker):
    async with serving(real_broker, CONTRACTS, limits=Limits(max_bytes=999_999)) as api:
        error = shaped(await post(api, ref_audio=BASE64), 400)
        assert error["code"] == "job_too_large" and "1,000,000 bytes" in error["message"]
        assert "shorten input" in error["message"]
        assert not real_broker.client().keys("*sent*")


# --- limits ---------------------------------------------------------------------------------------------------------


async def test_a_body_may_be_as_large_as_the_largest_recording(real_broker):
    small = replace(VoiceLimits(), recording=RecordingLimits(max_bytes=len(SOUND)))
    async with serving(real_broker, CONTRACTS, max_body_bytes=1_000, voices=small) as api:
        assert (await post(api, ref_audio=BASE64)).status_code == 202
        error = shaped(await post(api, ref_audio=base64.b64encode(SOUND + b"\0" * 3).decode()), 400)
        assert error["code"] == "invalid_recording" and str(len(SOUND)) in error["message"]
        shaped(await post(api, ref_audio=BASE64 + "A" * 2_000), 413)
    async with serving(real_broker, {"hum": HumContract()}, max_body_bytes=1_000) as api:
        shaped(await post(api, model="hum", ref_audio=BASE64), 413)


async def test_what_requests_bring_is_bounded(broker):
    short, long, more = wav(300, 0.6), wav(400), wav(500)
    async with serving(broker, CONTRACTS, voices=replace(VoiceLimits(), sent_bytes=len(short + long))) as api:

        async def send(sound: bytes, deadline_s: float):
            return await post(api, ref_audio=base64.b64encode(sound).decode(), deadline_s=deadline_s)

        assert (await send(short, 100)).status_code == 202
        assert (await send(long, 900)).status_code == 202
        refused = await send(wav(600, 0.6), 100)
        error = shaped(refused, 429)
        assert (error["code"], error["param"]) == ("recordings_full", "ref_audio")
        assert 100 < int(refused.headers["retry-after"]) <= 160, "when the short one goes"
        assert 900 < int((await send(more, 100)).headers["retry-after"]) <= 960, "the short one's room would not do"
        assert (await send(short, 100)).status_code == 202, "what is there needs no room"
        client = api.broker.client()
        gone = hashlib.sha256(long).hexdigest()
        client.delete(keys.sent_recording(gone))
        client.zadd(keys.SENT_EXPIRING, {gone: 1})
        assert (await send(more, 100)).status_code == 202, "what has gone makes room"
        assert int(client.hget(keys.SENT_SIZES, "")) == len(short + more)
        assert client.hlen(keys.SENT_SIZES) == 3


async def test_a_recording_that_never_fits_is_refused_for_good(broker):
    async with serving(broker, CONTRACTS, voices=replace(VoiceLimits(), sent_bytes=1_000)) as api:
        assert shaped(await post(api, ref_audio=BASE64), 400)["code"] == "invalid_recording"


async def test_one_recording_at_once_from_many_takes_room_once(redis_api):
    answers = await asyncio.gather(*(post(redis_api, ref_audio=BASE64) for _ in range(8)))
    assert {answer.status_code for answer in answers} == {202}
    assert int(redis_api.broker.client().hget(keys.SENT_SIZES, "")) == len(SOUND)


async def test_an_idempotency_key_knows_the_recording(redis_api):
    again = {"Idempotency-Key": "k"}
    first = await post(redis_api, headers=again, ref_audio=BASE64)
    assert (await post(redis_api, headers=again, ref_audio=BASE64)).json()["id"] == first.json()["id"]
    other = base64.b64encode(wav(300)).decode()
    assert shaped(await post(redis_api, headers=again, ref_audio=other), 422)["code"] == "idempotency_key_reused"


async def test_a_key_that_comes_again_gives_its_job_though_the_voice_is_gone(api):
    again = {"Idempotency-Key": "k"}
    await upload(api, ref_text=SAID)
    first = (await post(api, headers=again, voice="anna")).json()
    await api.http.delete("/v1/audio/voices/anna")
    second = await post(api, headers=again, voice="anna")
    assert (second.status_code, second.json()) == (200, first)
    assert shaped(await post(api, voice="anna"), 400)["param"] == "voice", "who comes without the key is told"
    await upload(api, sound=wav(300))
    assert (await post(api, headers=again, voice="anna")).json() == first, "nor is the new voice of that name taken"
    other = await post(api, headers=again, voice="bert")
    assert shaped(other, 422)["code"] == "idempotency_key_reused", "and no voice of the other body is looked for"


async def test_speech_that_is_asked_for_again_is_heard_though_its_voice_is_gone(api):
    again, body = {"Idempotency-Key": "k"}, BODY | {"voice": "anna", "response_format": "pcm"}
    await upload(api)
    job = (await post(api, headers=again, voice="anna", response_format="pcm")).json()
    await api.http.delete("/v1/audio/voices/anna")
    await asyncio.to_thread(api.player(job).play, 5, 1)
    answer = await api.http.post("/v1/audio/speech", json=body, headers=again)
    assert (answer.status_code, answer.headers["songline-job"]) == (200, job["id"])
    assert answer.content == song(5, 1)


async def test_a_key_that_comes_again_brings_no_recording_again(api):
    again = {"Idempotency-Key": "k"}
    first = (await post(api, headers=again, ref_audio=BASE64)).json()
    api.broker.client().delete(keys.sent_recording(SHA256))
    assert (await post(api, headers=again, ref_audio=BASE64)).json() == first
    assert not api.broker.client().exists(keys.sent_recording(SHA256))


# --- what there is --------------------------------------------------------------------------------------------------


async def test_the_models_own_voices_are_listed_before_the_uploaded(redis_api):
    await upload(redis_api)
    listed = (await redis_api.http.get("/v1/audio/voices")).json()["data"]
    shown = [(voice["name"], voice["kind"], voice.get("model")) for voice in listed]
    assert shown == [("boris", "built-in", "choir"), ("vera", "built-in", "choir"), ("anna", "uploaded", None)]
    models = {model["id"]: model for model in (await redis_api.http.get("/v1/models")).json()["data"]}
    assert (models["choir"]["voices"], models["choir"]["clones"]) == (["boris", "vera"], False)
    assert (models["parrot"]["voices"], models["parrot"]["clones"]) == ([], True)


async def test_the_log_holds_no_more_than_the_recordings_name(redis_api):
    job = (await post(redis_api, ref_audio=BASE64)).json()
    events = json.dumps((await redis_api.http.get(job["links"]["events"])).json())
    assert SHA256 in events and BASE64[:64] not in events
