"""Voices that are cloned: a recording is encoded once, beside the talker's loop, and logged before the first span."""

from __future__ import annotations

import hashlib
import io
import threading

import numpy as np
import pytest
import soundfile

from broker_schemas import keys
from broker_schemas.job import Status, fold
from tests.stand_ins import SPEECH, InstantAcoustic, InstantReferences, InstantRunner, acoustic, running, talker
from tests.test_pipeline import listen, sha256, submit
from tests.waiting import PATIENCE_S, reach, until
from workers.models.family import Reference
from workers.talker.artefacts import Artefacts


def recorded(broker, seed: int = 0) -> str:
    """The sha256 of a recording that lies in the broker."""
    samples = 0.1 * np.random.default_rng(seed).standard_normal(16_000)
    file = io.BytesIO()
    soundfile.write(file, samples, 16_000, format="WAV")
    sound = file.getvalue()
    digest = hashlib.sha256(sound).hexdigest()
    broker.client().set(keys.recording(digest), sound)
    return digest


def model() -> InstantAcoustic:
    return InstantAcoustic(width=0, keeps_state=False, own=None, channels=1)


@pytest.fixture
def references() -> InstantReferences:
    ready = InstantReferences()
    ready.may.set()
    return ready


def workers(broker, references, **kwargs):
    return (
        talker(broker, family=SPEECH, references=references, **kwargs),
        acoustic(broker, family=SPEECH, model=model()),
    )


async def test_a_reference_is_logged_before_the_first_span_and_encoded_once_for_all(producer, broker, references):
    voice, other = recorded(broker), recorded(broker, 1)
    with running(*workers(broker, references)):
        heard = []
        for recording in (voice, voice, other, ""):
            job = await submit(producer, frames=60, params={"ref_audio": recording})
            events, chunks = await listen(producer, job)
            heard.append(sha256(chunks))
            types = [event.type for event in events]
            assert types.count("reference.encoded") == bool(recording)
            if recording:
                assert types.index("reference.encoded") < types.index("span.window")
                assert fold(events).reference.recording == recording
    assert references.encoded == 2
    assert heard[0] == heard[1]
    assert len(set(heard)) == 3


async def test_a_successor_uses_the_reference_that_the_log_has(producer, broker, references):
    with running(*workers(broker, references)):
        job = await submit(producer, frames=80, params={"ref_audio": recorded(broker)})
        _, undisturbed = await listen(producer, job)
    with running(acoustic(broker, family=SPEECH, model=model())):
        runner, leaving = InstantRunner(width=0), threading.Event()
        runner.before_step = lambda: runner.steps == 40 and leaving.wait(PATIENCE_S)
        with running(talker(broker, family=SPEECH, references=references, runner=runner)) as stop:
            job = await submit(producer, frames=80, params={"ref_audio": recorded(broker)})
            await reach(producer, job, lambda state: state.spans >= 3)
            stop.set()
            leaving.set()
        broker.client().delete(keys.recording(recorded(broker)))
        with running(talker(broker, family=SPEECH, references=InstantReferences())):  # which may not encode
            _, chunks = await listen(producer, job)
    assert sha256(chunks) == sha256(undisturbed)
    assert (await producer.jobs.state(job)).attempts["talker"] == 2


async def test_others_go_on_while_a_recording_is_encoded(producer, broker):
    slow = InstantReferences()
    with running(*workers(broker, slow)):
        waiting = await submit(producer, frames=60, params={"ref_audio": recorded(broker)})
        job = await submit(producer, frames=60)
        events, _ = await listen(producer, job)
        assert fold(events).status is Status.COMPLETED
        assert (await producer.jobs.state(waiting)).status is Status.QUEUED
        slow.may.set()
        events, _ = await listen(producer, waiting)
    assert fold(events).status is Status.COMPLETED


async def test_cancelled_while_its_recording_is_encoded(producer, broker):
    slow = InstantReferences()
    with running(*workers(broker, slow)):
        job = await submit(producer, frames=60, params={"ref_audio": recorded(broker)})
        await until(lambda: broker.client().exists(keys.lease(job, keys.TALKER)))
        assert (await producer.cancel(job, by_whom="me")).status is Status.CANCELLED
        slow.may.set()
        events, _ = await listen(producer, await submit(producer, frames=60, params={"ref_audio": recorded(broker, 1)}))
        assert fold(events).status is Status.COMPLETED
    assert not (await producer.jobs.state(job)).rows_freed  # it never had any


async def test_a_recording_that_is_gone_or_broken_fails_its_job_and_says_so(producer, broker, references):
    broker.client().set(keys.recording("0" * 64), b"not sound")
    with running(*workers(broker, references)):
        for recording, said in (("1" * 64, "is gone"), ("0" * 64, "cannot be read")):
            events, _ = await listen(producer, await submit(producer, frames=9, params={"ref_audio": recording}))
            state = fold(events)
            assert (state.status, state.error.code, state.error.retryable) == (Status.FAILED, "no_reference", False)
            assert said in state.error.message


async def test_a_checkpoint_that_clones_no_voices_refuses(producer, broker):
    with running(*workers(broker, None)):
        job = await submit(producer, frames=9, params={"ref_audio": recorded(broker)})
        state = fold((await listen(producer, job))[0])
    assert (state.status, state.error.code) == (Status.FAILED, "no_references")


def test_the_longest_unused_artefacts_make_room(broker):
    def reference(value: int, width: int = 100) -> Reference:
        return Reference(np.full(width, value, np.float32), None)

    client = broker.client()
    few = Artefacts(client, max_count=3)
    for number in range(3):
        few.put(str(number), reference(number))
    assert few.get("0").speaker[0] == 0  # used again: now it is the newest
    few.put("3", reference(3))
    assert [few.get(str(number)) is not None for number in range(4)] == [True, False, True, True]
    small = Artefacts(client, max_bytes=2000)
    small.put("large", reference(5, 400))
    assert [small.get(name) is not None for name in ("0", "2", "3", "large")] == [False, False, False, True]
    assert int(client.hget(keys.ARTEFACT_SIZES, "")) == client.strlen(keys.artefact("large"))
    small.put("huge", reference(6, 1000))
    assert small.get("huge") is None
    assert int(client.hget(keys.ARTEFACT_SIZES, "")) == 0
