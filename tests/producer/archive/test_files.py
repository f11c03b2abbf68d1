"""What is kept of a job: all of its sound, and its facts as the log has them until its end."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime

import numpy as np
import soundfile

from broker_schemas import keys
from broker_schemas.codec import Tensor, pack, unpack
from broker_schemas.events import JobRequested, ReferenceEncoded
from producer.wav import wav_header
from tests.api.conftest import serving
from tests.api.player import SAMPLES, song
from tests.producer.archive.conftest import caught_up, facts, files


async def test_a_completed_jobs_sound_and_facts(broker, folder):
    async with serving(broker) as api:
        job = await api.played(3, metadata={"order": "17"}, user="ann", instructions="low")
        assert await caught_up(broker, folder) == (1, 0, 0)
        shown = (await api.http.get(job["links"]["self"])).json()
    day = datetime.fromtimestamp(shown["timings"]["requested_at"], UTC).strftime("%Y/%m/%d")
    kept = files(folder)
    assert kept.keys() == {f"{day}/{job['id']}.wav", f"{day}/{job['id']}.json"}
    pcm, wav = song(5, 3), kept[f"{day}/{job['id']}.wav"]
    assert wav == wav_header(32_000, 2, len(pcm)) + pcm

    told = facts(folder, job)
    for name in ("id", "status", "model", "seed", "attempts", "frames", "reason", "error", "cancelled_by"):
        assert told[name] == shown[name], name
    assert told["request"] == {
        "input": "la la", "params": shown["params"], "user": "ann", "metadata": {"order": "17"},
    }  # fmt: skip
    assert told["owner"] == "anonymous" and told["profiles"] == {"talker": "p", "acoustic": "p"}
    assert {name: shown["timings"][name] for name in told["timings"]} == told["timings"]
    assert told["sound"] == {
        "file": f"{job['id']}.wav",
        "bytes": len(wav),
        "sha256": hashlib.sha256(wav).hexdigest(),
        "pcm_sha256": hashlib.sha256(pcm).hexdigest(),
        "sample_rate": 32_000,
        "channels": 2,
        "samples": 3 * SAMPLES,
        "seconds": 3 * SAMPLES / 32_000,
    }


async def test_the_time_line_is_the_logs(real_broker, folder):
    async with serving(real_broker) as api:
        job = await api.played(2)
        await caught_up(real_broker, folder)
        logged = (await api.http.get(job["links"]["events"])).json()["data"]
    events = facts(folder, job)["events"]
    assert [(event["seq"], event["type"], event["by"]) for event in events] == [
        (event["seq"], event["type"], event["by"]) for event in logged
    ]
    began = logged[0]["at"]
    assert all(abs(event["at"] - (shown["at"] - began)) < 0.001 for event, shown in zip(events, logged, strict=True))
    chunk = next(event for event in events if event["type"] == "audio.chunk")
    assert chunk["data"] == next(event["data"] for event in logged if event["type"] == "audio.chunk")


async def test_flac_has_the_same_samples(real_broker, folder):
    async with serving(real_broker) as api:
        job = await api.played(2)
        await caught_up(real_broker, folder, format="flac")
    [path] = folder.rglob(f"{job['id']}.flac")
    samples, rate = soundfile.read(path, dtype="int16")
    assert rate == 32_000 and samples.tobytes() == song(5, 2)
    sound = facts(folder, job)["sound"]
    assert sound["file"] == path.name and sound["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert sound["pcm_sha256"] == hashlib.sha256(song(5, 2)).hexdigest()


async def test_of_a_failed_and_a_cancelled_job_facts_alone(real_broker, folder):
    async with serving(real_broker) as api:
        failed, cancelled = [await api.submit() for _ in range(2)]
        for job in (failed, cancelled):
            player = api.player(job)
            player.admit(5)
            player.sound(1)
        api.player(failed).fail()
        await api.http.delete(cancelled["links"]["self"])
        assert await caught_up(real_broker, folder) == (2, 0, 0)
    assert {name.rsplit(".", 1)[1] for name in files(folder)} == {"json"}
    told = facts(folder, failed)
    assert (told["status"], told["error"]["code"], told["sound"]) == ("failed", "no_frames", None)
    told = facts(folder, cancelled)
    assert (told["status"], told["cancelled_by"], told["sound"]) == ("cancelled", "client", None)


async def test_no_recording_no_voice_no_codes_and_no_webhook_are_kept(real_broker, folder):
    speaker, codes = np.full(4, 0.123456789, np.float32), np.full((3, 8), 31_337, np.int16)
    async with serving(real_broker) as api:
        job = await api.submit()
        player = api.player(job)
        _rewrite_request(real_broker, job, webhook="https://example.com/?token=hush")
        player.admit(5)
        player._append(
            ReferenceEncoded(recording="ab" * 32, speaker=Tensor.of(speaker), codes=Tensor.of(codes)), token="t"
        )
        player.sound(1, last=True)
        player.complete()
        await caught_up(real_broker, folder)
    [voice] = [event["data"] for event in facts(folder, job)["events"] if event["type"] == "reference.encoded"]
    assert voice == {
        "recording": "ab" * 32,
        "speaker": {"dtype": "float32", "shape": [4]},
        "codes": {"dtype": "int16", "shape": [3, 8]},
    }
    text = json.dumps(facts(folder, job))
    assert "hush" not in text and "31337" not in text and "0.1234" not in text


def _rewrite_request(broker, job: dict, **fields) -> None:
    """The job's first event, with other data."""
    client = broker.client()
    envelope = unpack(client.xrange(keys.log(job["id"]))[0][1][b"e"])
    envelope["data"] = {**envelope["data"], **fields}
    client.delete(keys.log(job["id"]))
    client.xadd(keys.log(job["id"]), {"e": pack(envelope)}, id="1-0")


async def test_the_api_says_how_the_samples_lie(real_broker):
    async with serving(real_broker) as api:
        job = await api.submit()
        request = (await (await api.service.producer()).jobs.state(job["id"])).request
    assert (request.sample_rate, request.channels) == (32_000, 2)


async def test_of_a_job_that_an_older_api_accepted_facts_alone(real_broker, folder, caplog):
    assert JobRequested(model="m", input="", params={}, seed=1, owner="o", deadline=0).sample_rate is None
    async with serving(real_broker) as api:
        job = await api.submit()
        _rewrite_request(real_broker, job, sample_rate=None, channels=None)
        api.player(job).play(5, 1)
        assert await caught_up(real_broker, folder) == (1, 0, 0)
    assert facts(folder, job)["sound"] is None and not list(folder.rglob("*.wav"))
    assert any(job["id"] in record.getMessage() for record in caplog.records)


async def test_a_key_that_makes_its_job_anew_is_kept_beside_the_first(real_broker, folder):
    body, key = {"model": "hum", "input": "la", "seed": 1}, {"Idempotency-Key": "k"}
    async with serving(real_broker) as api:
        for windows in (1, 2):
            job = (await api.http.post("/v1/jobs", json=body, headers=key)).json()
            api.player(job).play(1, windows)
            assert await caught_up(real_broker, folder) == (1, 0, 0)
            assert await caught_up(real_broker, folder) == (0, 1, 0)
            api.player(job).expire()
    sounds = sorted(len(content) for name, content in files(folder).items() if name.endswith(".wav"))
    assert sounds == [44 + len(song(1, windows)) for windows in (1, 2)]
