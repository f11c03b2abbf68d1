"""Upload, list and delete voices: whose they are, what is kept, and what is refused."""

from __future__ import annotations

import asyncio
import hashlib
import io
from dataclasses import replace

import numpy as np
import pytest
import soundfile

from api.settings import VoiceLimits
from api.voices import find_voice
from broker_schemas import keys
from broker_schemas.recordings import RecordingLimits
from broker_schemas.voices import read_sound, read_voice
from tests.api.conftest import serving
from tests.api.test_errors import shaped

CONSENT = "Anna N. agreed in writing."


def wav(hertz: float = 440, seconds: float = 1.0) -> bytes:
    written = io.BytesIO()
    at = np.arange(round(seconds * 24_000)) / 24_000
    soundfile.write(written, 0.3 * np.sin(2 * np.pi * hertz * at), 24_000, format="WAV")
    return written.getvalue()


SOUND = wav()


async def upload(api, name="anna", sound=SOUND, headers=None, **fields):
    form = {"name": name, "consent": CONSENT} | fields
    return await api.http.post(
        "/v1/audio/voices",
        data={key: value for key, value in form.items() if value is not None},
        files={"audio_sample": (None, "no file") if sound is None else ("a.wav", sound)},
        headers=headers,
    )


async def names(api, headers=None) -> list[str]:
    return [voice["name"] for voice in (await api.http.get("/v1/audio/voices", headers=headers)).json()["data"]]


async def test_a_voice_is_kept_as_it_was_sent(api):
    answer = await upload(api, ref_text=" The river knows the way. ")
    assert answer.status_code == 201, answer.text
    voice = answer.json()
    assert (voice["id"], voice["name"], voice["object"]) == ("anna", "anna", "audio.voice")
    assert (voice["consent"], voice["ref_text"]) == (CONSENT, "The river knows the way.")
    assert (voice["bytes"], voice["seconds"], voice["sample_rate"]) == (len(SOUND), 1.0, 24_000)
    assert voice["sha256"] == hashlib.sha256(SOUND).hexdigest()
    assert (await api.http.get("/v1/audio/voices")).json() == {"object": "list", "data": [voice]}
    client = api.broker.client()
    assert read_sound(client, voice["sha256"]) == SOUND
    assert read_voice(client, "anonymous", "Anna").ref_text == "The river knows the way."
    assert (await find_voice(api.service.client(), "anonymous", "ANNA")).name == "anna"
    assert await find_voice(api.service.client(), "anonymous", "bert") is None


async def test_a_deleted_voice_leaves_nothing(api):
    sha256 = (await upload(api)).json()["sha256"]
    answer = await api.http.delete("/v1/audio/voices/ANNA")
    assert answer.json() == {"id": "anna", "object": "audio.voice", "deleted": True}
    assert await names(api) == []
    client = api.broker.client()
    assert not client.exists(keys.VOICES) and not client.exists(keys.recording(sha256))
    with pytest.raises(LookupError, match="deleted"):
        read_sound(client, sha256)
    assert shaped(await api.http.delete("/v1/audio/voices/anna"), 404)["code"] == "voice_not_found"


async def test_a_recording_stays_for_as_long_as_a_voice_has_it(api):
    sha256 = (await upload(api, "anna")).json()["sha256"]
    assert (await upload(api, "bert")).json()["sha256"] == sha256
    await api.http.delete("/v1/audio/voices/anna")
    assert read_sound(api.broker.client(), sha256) == SOUND
    await api.http.delete("/v1/audio/voices/bert")
    assert not api.broker.client().exists(keys.recording(sha256))


async def test_names_are_unicode_and_found_whatever_their_case(redis_api):
    for name in ("Zoë", "北京 1", "a", "x" * 64, "d.j-2_b"):
        assert (await upload(redis_api, name)).status_code == 201
    assert await names(redis_api) == sorted(("Zoë", "北京 1", "a", "x" * 64, "d.j-2_b"), key=str.casefold)
    assert (await redis_api.http.delete("/v1/audio/voices/ZOE\u0308")).status_code == 200
    assert "Zoë" not in await names(redis_api)


async def test_the_same_upload_again_is_the_same_voice_and_another_is_refused(api):
    first = await upload(api)
    again = await upload(api)
    assert (again.status_code, again.json()) == (200, first.json())
    for other in (
        {"sound": wav(300)},
        {"consent": "Bert agreed."},
        {"ref_text": "La."},
        {"name": "Anna", "ref_text": "x"},
    ):
        error = shaped(await upload(api, **other), 409)
        assert (error["code"], error["param"]) == ("voice_exists", "name")
    assert (await api.http.get("/v1/audio/voices")).json()["data"] == [first.json()]


async def test_uploads_at_once_under_one_name_keep_one(redis_api):
    answers = await asyncio.gather(*(upload(redis_api, sound=wav(200 + 50 * n)) for n in range(5)))
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409, 409]
    client = redis_api.broker.client()
    [kept] = [answer.json()["sha256"] for answer in answers if answer.status_code == 201]
    assert client.keys(keys.recording("*")) == [keys.recording(kept).encode()]


async def test_voices_are_their_owners(broker):
    async with serving(broker, api_keys=("anna:key-a", "bert:key-b")) as api:
        anna, bert = ({"Authorization": f"Bearer {key}"} for key in ("key-a", "key-b"))
        assert (await upload(api, "mine", headers=anna)).status_code == 201
        assert (await upload(api, "mine", wav(300), headers=bert)).status_code == 201
        assert await names(api, anna) == ["mine"]
        assert (await api.http.delete("/v1/audio/voices/mine", headers=bert)).status_code == 200
        assert await names(api, anna) == ["mine"] and await names(api, bert) == []
        for call in (upload(api), api.http.get("/v1/audio/voices"), api.http.delete("/v1/audio/voices/mine")):
            shaped(await call, 401)
        assert await names(api, anna) == ["mine"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"name": None}, "name"), ({"name": " "}, "name"), ({"name": "a/b"}, "name"), ({"name": "x" * 65}, "name"),
        ({"name": "..x"}, "name"), ({"name": "a\nb"}, "name"), ({"consent": None}, "consent"),
        ({"consent": "  "}, "consent"), ({"consent": "x" * 4_001}, "consent"), ({"ref_text": "x" * 4_001}, "ref_text"),
        ({"sound": None}, "audio_sample"), ({"sound": b""}, "audio_sample"), ({"sound": b"RIFF" * 99}, "audio_sample"),
        ({"sound": wav(seconds=0.2)}, "audio_sample"), ({"pitch": "high"}, "pitch"),
    ],
)  # fmt: skip
async def test_what_cannot_be_kept_is_refused_and_named(redis_api, fields, param):
    assert shaped(await upload(redis_api, **fields), 400)["param"] == param
    assert await names(redis_api) == []


async def test_forms_that_are_none(redis_api):
    sent = [
        {"json": {"name": "anna"}},
        {"content": b"junk", "headers": {"content-type": "multipart/form-data; boundary=x"}},
        {"content": b"junk", "headers": {"content-type": "multipart/form-data"}},
    ]
    for form in sent:
        shaped(await redis_api.http.post("/v1/audio/voices", **form), 400)
    files = [("audio_sample", ("a.wav", SOUND)), ("audio_sample", ("b.wav", SOUND))]
    shaped(await redis_api.http.post("/v1/audio/voices", data={"name": "a", "consent": "b"}, files=files), 400)


def limits(**changes) -> VoiceLimits:
    return replace(VoiceLimits(), **changes)


async def test_an_upload_that_is_too_large(real_broker):
    small = limits(recording=RecordingLimits(max_bytes=50_000))
    async with serving(real_broker, voices=small) as api:
        assert (await upload(api)).status_code == 201
        error = shaped(await upload(api, "bert", wav(seconds=1.5)), 400)
        assert error["code"] == "invalid_recording" and "at most 50000" in error["message"]
        assert shaped(await upload(api, "bert", b"\0" * 300_000), 413)["code"] == "body_too_large"


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"of_owner": 1}, "you have 1"), ({"of_all": 1}, "there are 1"), ({"max_bytes": 50_000}, "over 50000 bytes")],
)
async def test_room_is_bounded_and_made_by_deleting(real_broker, changes, why):
    async with serving(real_broker, voices=limits(**changes)) as api:
        assert (await upload(api)).status_code == 201
        error = shaped(await upload(api, "bert", wav(300)), 409)
        assert error["code"] == "voices_full" and why in error["message"]
        assert (await upload(api)).status_code == 200, "what is there already needs no room"
        await api.http.delete("/v1/audio/voices/anna")
        assert (await upload(api, "bert", wav(300))).status_code == 201


async def test_one_recording_under_two_names_takes_room_once(real_broker):
    async with serving(real_broker, voices=limits(max_bytes=60_000)) as api:
        assert (await upload(api, "anna")).status_code == 201
        assert (await upload(api, "bert")).status_code == 201
