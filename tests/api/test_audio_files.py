"""A completed job's file: formats, ranges, conditions."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

from broker_schemas import keys
from tests.api.conftest import serving
from tests.api.player import SAMPLES, song
from tests.waiting import until


async def test_pcm_and_wav_hold_the_very_samples(api):
    job = await api.played(3)
    url = job["links"]["audio"]
    assert (await api.http.get(url, params={"format": "pcm"})).content == song(5, 3)
    wav = await api.http.get(url)
    assert wav.headers["content-type"] == "audio/wav"
    assert wav.headers["content-disposition"] == f'attachment; filename="{job["id"]}.wav"'
    samples, rate = soundfile.read(io.BytesIO(wav.content), dtype="int16")
    assert rate == 32_000 and samples.tobytes() == song(5, 3)


@pytest.mark.parametrize(
    ("format_", "kind", "rate"),
    [("flac", "audio/flac", 32_000), ("mp3", "audio/mpeg", 32_000), ("opus", "audio/ogg;codecs=opus", 48_000)],
)
async def test_encoded_files_sound_like_the_song(redis_api, format_, kind, rate):
    api = redis_api
    job = await api.played(8)
    answer = await api.http.get(job["links"]["audio"], params={"format": format_})
    assert answer.headers["content-type"] == kind
    samples, got_rate = soundfile.read(io.BytesIO(answer.content))
    assert got_rate == rate
    seconds = 8 * SAMPLES / 32_000
    assert len(samples) / rate == pytest.approx(seconds, abs=0.001)
    original = np.frombuffer(song(5, 8), "<i2").reshape(-1, 2) / 32_768
    for channel in range(2):
        assert _loudest(samples[:, channel], rate) == pytest.approx(_loudest(original[:, channel], 32_000), abs=3)
        assert np.std(samples[:, channel]) == pytest.approx(np.std(original[:, channel]), rel=0.05)
    if format_ == "flac":
        assert np.array_equal(samples, original)


def _loudest(samples: np.ndarray, rate: int) -> float:
    """Hz of the strongest tone."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum) * rate / len(samples))


async def test_the_jobs_own_format_is_the_default(redis_api):
    job = await redis_api.played(1, response_format="flac")
    assert (await redis_api.http.get(job["links"]["audio"])).headers["content-type"] == "audio/flac"


@pytest.mark.parametrize("format_", ["wav", "pcm", "flac"])
async def test_ranges_are_parts_of_the_whole(api, format_):
    job = await api.played(3)
    url, params = job["links"]["audio"], {"format": format_}
    whole = (await api.http.get(url, params=params)).content
    size = len(whole)
    for asked, (start, stop) in {
        "bytes=0-0": (0, 1), "bytes=10-60": (10, 61), "bytes=16000-": (16_000, size), "bytes=-100": (size - 100, size),
        f"bytes=15990-{size * 2}": (15_990, size), "bytes=15999-32050": (15_999, 32_051), "bytes=44-": (44, size),
    }.items():  # fmt: skip
        if start >= size:
            continue
        part = await api.http.get(url, params=params, headers={"Range": asked})
        stop = min(stop, size)
        assert part.status_code == 206 and part.content == whole[start:stop], asked
        assert part.headers["content-range"] == f"bytes {start}-{stop - 1}/{size}"
        assert part.headers["content-length"] == str(stop - start)
    for outside in (f"bytes={size}-", "bytes=-0"):
        part = await api.http.get(url, params=params, headers={"Range": outside})
        assert part.status_code == 416 and part.headers["content-range"] == f"bytes */{size}"
    for ignored in ("bytes=5-2", "lines=1-2", "bytes=1-2,5-6", "bytes=-"):
        assert (await api.http.get(url, params=params, headers={"Range": ignored})).status_code == 200


async def test_conditions(api):
    job = await api.played(2)
    url = job["links"]["audio"]
    first = await api.http.get(url)
    etag = first.headers["etag"]
    assert (await api.http.get(url, headers={"If-None-Match": etag})).status_code == 304
    ranged = {"Range": "bytes=0-9"}
    assert (await api.http.get(url, headers=ranged | {"If-Range": etag})).status_code == 206
    assert (await api.http.get(url, headers=ranged | {"If-Range": '"other"'})).status_code == 200
    assert (await api.http.get(url, params={"format": "pcm"})).headers["etag"] != etag
    head = await api.http.head(url)
    assert head.headers["content-length"] == str(len(first.content)) and not head.content


async def test_a_file_is_encoded_once_and_its_bytes_stay(api):
    job = await api.played(4)
    url, params = job["links"]["audio"], {"format": "opus"}  # Ogg's serial numbers are drawn anew each time
    answers = await asyncio.gather(*(api.http.get(url, params=params) for _ in range(5)))
    assert len({answer.content for answer in answers}) == 1
    assert len({answer.headers["etag"] for answer in answers}) == 1


async def test_a_key_used_again_after_expiry_has_the_new_songs_file(redis_api):
    api, answers = redis_api, []
    for seed in (1, 2):
        body, again = {"model": "hum", "input": "la", "seed": seed}, {"Idempotency-Key": "again"}
        job = (await api.http.post("/v1/jobs", json=body, headers=again)).json()
        await asyncio.to_thread(api.player(job).play, seed, 2)
        answers.append(await api.http.get(job["links"]["audio"], params={"format": "flac"}))
        api.player(job).expire()
    for seed, answer in zip((1, 2), answers, strict=True):
        assert soundfile.read(io.BytesIO(answer.content), dtype="int16")[0].tobytes() == song(seed, 2)
    assert answers[0].headers["etag"] != answers[1].headers["etag"]


def on_disk(api) -> list[str]:
    return [path.suffix for path in Path(api.service.files._folder.name).iterdir()]


@pytest.mark.filterwarnings("error")
async def test_a_file_that_cannot_be_made_leaves_nothing_on_disk(redis_api):
    job = await redis_api.played(3)
    redis_api.broker.client().xdel(keys.audio(job["id"]), "3-0")
    answer = await redis_api.http.get(job["links"]["audio"], params={"format": "flac"})
    assert answer.status_code == 410
    assert on_disk(redis_api) == []


async def test_files_of_jobs_that_are_gone_are_dropped(redis_api, monkeypatch):
    monkeypatch.setattr("api.chores.TIDY_EVERY_S", 0.1)
    async with serving(redis_api.broker) as api:
        purged, expired, stays = [await api.played(1) for _ in range(3)]
        for job, format_ in ((purged, "mp3"), (expired, "opus"), (stays, "flac")):
            await api.http.get(job["links"]["audio"], params={"format": format_})
        assert len(on_disk(api)) == 3
        await redis_api.http.delete(purged["links"]["self"], params={"purge": True})  # by another process
        api.player(expired).expire()

        async def gone():
            return on_disk(api) == [".flac"]

        await until(gone)


async def test_an_unfinished_job_has_no_file_yet_and_is_told_where_to_listen(api):
    job = await api.submit()
    answer = await api.http.get(job["links"]["audio"])
    assert answer.status_code == 409 and answer.json()["error"]["code"] == "job_not_completed"
    assert job["links"]["stream"] in answer.json()["error"]["message"]
    await api.http.delete(job["links"]["cancel"])
    assert (await api.http.get(job["links"]["audio"])).json()["error"]["code"] == "job_cancelled"
    failed = await api.submit()
    api.player(failed).fail()
    assert (await api.http.get(failed["links"]["audio"])).json()["error"]["code"] == "job_failed"
    done = await api.played(1)
    assert (await api.http.get(done["links"]["audio"], params={"format": "aac"})).status_code == 400
