"""Webhooks: signed, at least once whoever dies, once where nobody does, and only to hosts that are allowed."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import json
from contextlib import asynccontextmanager
from datetime import datetime

import pytest

from api import allowed_hosts
from api.app import create_app
from api.settings import ApiSettings, WebhookSettings
from api.webhooks import deliver_webhooks
from broker_schemas import keys, log
from broker_schemas.codec import digest
from tests.api.conftest import serving
from tests.api.player import HumContract
from tests.api.test_errors import shaped
from tests.waiting import PATIENCE_S, until

SECRET = "whsec_" + base64.b64encode(b"a receiver's key, 24 bytes").decode()
NEVER_S = 3600.0


class Receiver:
    """A bare HTTP server. Answers with `statuses` in turn, and 200 after them."""

    def __init__(self, *statuses: int) -> None:
        self.heard: list[tuple[dict[str, str], bytes]] = []  # headers in lower case, body
        self.statuses = list(statuses)
        self.location = "/"
        self.answers = asyncio.Event()
        self.answers.set()
        self.port = 0

    @property
    def host(self) -> str:
        return f"localhost:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}/songs?for=me"

    @property
    def messages(self) -> list[dict]:
        return [json.loads(body) for _, body in self.heard]

    async def __aenter__(self) -> Receiver:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_) -> None:
        self._server.close()

    async def _serve(self, reader, writer) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
        self.heard.append((headers | {"request": first}, body))
        await self.answers.wait()
        status = self.statuses.pop(0) if self.statuses else 200
        head = f"HTTP/1.1 {status} So\r\nLocation: {self.location}\r\nContent-Length: 0\r\n\r\n"
        writer.write(head.encode())
        writer.close()


def telling(*hosts: str, **changes) -> WebhookSettings:
    """Looks all the time, and tries for as long as a test lasts."""
    defaults = {"secrets": (SECRET,), "pauses_s": (0.01,) * 100_000, "timeout_s": PATIENCE_S, "claim_s": PATIENCE_S}
    return WebhookSettings(hosts=hosts, **({**defaults, "look_every_s": 0.01} | changes))


@asynccontextmanager
async def told(broker, *statuses: int, **changes):
    """An api and the receiver that it may tell."""
    async with Receiver(*statuses) as receiver, serving(broker, webhooks=telling(receiver.host, **changes)) as api:
        yield api, receiver


def owed(broker) -> list[str]:
    """Jobs of which anything is kept."""
    client = broker.client()
    kept = {*client.zrange(keys.WEBHOOKS, 0, -1), *client.hkeys(keys.WEBHOOKS_OWED)}
    return [job.decode() for job in kept | set(client.hkeys(keys.WEBHOOK_MESSAGES))]


def outcomes(api, outcome: str) -> float:
    return api.service.metrics.registry.get_sample_value("songline_webhooks_total", {"outcome": outcome}) or 0


async def settled(broker) -> None:
    await until(lambda: not owed(broker))


# --- what is told ---------------------------------------------------------------------------------------------------


async def test_a_completed_job_is_told_as_it_is_shown_under_a_signature_that_holds(broker):
    plain = "another, as it is"
    async with told(broker, secrets=(SECRET, plain)) as (api, receiver):
        job = await api.played(webhook=receiver.url, metadata={"order": "17"})
        await settled(broker)
        [(headers, body)] = receiver.heard
        assert headers["request"] == "POST /songs?for=me HTTP/1.1" and headers["host"] == receiver.host
        assert headers["content-type"] == "application/json"

        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        for key, signature in zip(
            (b"a receiver's key, 24 bytes", plain.encode()), headers["webhook-signature"].split(" "), strict=True
        ):
            assert signature == "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()

        shown = (await api.http.get(job["links"]["self"])).json()
        message = json.loads(body)
        assert message.keys() == {"type", "timestamp", "data"} and message["type"] == "job.completed"
        assert message["data"] == shown and shown["webhook"] == receiver.url
        ended_at = datetime.fromisoformat(message["timestamp"]).timestamp()
        assert ended_at == pytest.approx(shown["timings"]["ended_at"])
        assert int(headers["webhook-timestamp"]) >= int(ended_at)
        await until(lambda: outcomes(api, "delivered") == 1)


async def test_a_failed_and_a_cancelled_job_are_told(real_broker):
    async with told(real_broker) as (api, receiver):
        failed, cancelled = [await api.submit(webhook=receiver.url) for _ in range(2)]
        api.player(failed).fail()
        await api.http.delete(cancelled["links"]["self"])
        await settled(real_broker)
        by_job = {message["data"]["id"]: message for message in receiver.messages}
        assert by_job[failed["id"]]["type"] == "job.failed"
        assert by_job[failed["id"]]["data"]["error"]["code"] == "no_frames"
        assert by_job[cancelled["id"]]["type"] == "job.cancelled"
        assert by_job[cancelled["id"]]["data"]["cancelled_by"] == "client"
        assert len({headers["webhook-id"] for headers, _ in receiver.heard}) == 2


async def test_nothing_is_told_of_a_job_that_lives_or_that_did_not_ask(real_broker):
    async with told(real_broker, look_every_s=NEVER_S) as (api, receiver):
        asked, _ = await api.submit(webhook=receiver.url), await api.played()
        assert owed(real_broker) == [asked["id"]]
        claim = log.claim_webhooks(["hum"], ttl_ms=60_000, most=10)
        assert len(await api.service.run(claim)) == 1  # when it would lapse, and no job
        api.player(asked).play(5, 1)
        others = log.claim_webhooks(["song"], ttl_ms=60_000, most=10)
        assert len(await api.service.run(others)) == 1, "its model is for others to tell"
        assert (await api.service.run(claim))[1:] == [asked["id"], 1]


async def test_the_speech_route_takes_it(real_broker):
    async with told(real_broker) as (api, receiver):
        fields = {"model": "hum", "input": "la", "response_format": "pcm", "webhook": receiver.url}
        speaking = asyncio.create_task(api.http.post("/v1/audio/speech", json=fields))
        [job] = await until(lambda: owed(real_broker))
        await until(lambda: real_broker.client().zscore(keys.jobs("anonymous"), job))  # all that points to it is there
        api.player({"id": job}).play(5, 1)
        assert (await speaking).status_code == 200
        await settled(real_broker)
        assert receiver.messages[0]["data"]["id"] == job


# --- at least once --------------------------------------------------------------------------------------------------


async def test_it_is_told_again_until_it_is_taken(broker):
    async with Receiver() as elsewhere, told(broker, 500, 302, 404) as (api, receiver):
        receiver.location = elsewhere.url
        await api.played(webhook=receiver.url)
        await settled(broker)
        assert len(receiver.heard) == 4 and not elsewhere.heard
        assert len({(headers["webhook-id"], body) for headers, body in receiver.heard}) == 1
        await until(lambda: outcomes(api, "delivered") == 1)
        assert outcomes(api, "failed") == 3


async def test_an_operator_sees_what_is_owed_and_what_became_of_it(broker):
    async def seen() -> dict[str, int]:
        return (await api.http.get("/v1/pipeline")).json()["webhooks"]

    async with told(broker, 500, pauses_s=(NEVER_S,)) as (api, receiver):
        nothing = {"owed": 0, "retrying": 0, "delivered": 0, "failed": 0, "given_up": 0}
        assert await seen() == nothing
        job = await api.submit(webhook=receiver.url)
        assert await seen() == nothing | {"owed": 1}
        api.player(job).play(5, 1)
        await until(lambda: outcomes(api, "failed") == 1)
        assert await seen() == nothing | {"owed": 1, "retrying": 1, "failed": 1}
        text = (await api.http.get("/metrics")).text
        assert 'songline_webhooks_waiting{state="owed"} 1.0' in text
        assert 'songline_webhooks_waiting{state="retrying"} 1.0' in text

        broker.client().zadd(keys.WEBHOOKS, {job["id"]: 0})  # the pause is over
        await until(lambda: outcomes(api, "delivered") == 1)
        assert await seen() == nothing | {"failed": 1, "delivered": 1}

        receiver.statuses = [500, 500]
        job = await api.played(webhook=receiver.url)
        await until(lambda: outcomes(api, "failed") == 2)
        broker.client().zadd(keys.WEBHOOKS, {job["id"]: 0})
        await until(lambda: outcomes(api, "given_up") == 1)
        assert await seen() == nothing | {"failed": 3, "delivered": 1, "given_up": 1}, "the last attempt failed too"


async def test_a_receiver_that_is_away_hears_of_it_when_it_is_back(real_broker):
    async with Receiver() as receiver:
        pass
    async with serving(real_broker, webhooks=telling(receiver.host)) as api:
        job = await api.played(webhook=receiver.url)
        await until(lambda: outcomes(api, "failed") >= 2)
        async with receiver:
            await settled(real_broker)
        assert [message["data"]["id"] for message in receiver.messages] == [job["id"]]


async def test_a_receiver_that_does_not_answer_is_let_go(real_broker):
    async with told(real_broker, timeout_s=0.2) as (api, receiver):
        receiver.answers.clear()
        await api.played(webhook=receiver.url)
        await until(lambda: outcomes(api, "failed"))
        receiver.answers.set()
        await settled(real_broker)


async def test_a_receiver_that_dribbles_is_let_go(real_broker):
    async def dribble(reader, writer):
        try:
            writer.write(b"HTTP/1.1 200 OK\r\n")
            while True:
                writer.write(b"A: b\r\n")
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            pass

    server = await asyncio.start_server(dribble, "127.0.0.1", 0)
    async with server:
        host = f"localhost:{server.sockets[0].getsockname()[1]}"
        async with serving(real_broker, webhooks=telling(host, timeout_s=0.3, pauses_s=(NEVER_S,))) as api:
            await api.played(webhook=f"http://{host}/")
            await until(lambda: outcomes(api, "failed"))
            server.close()


async def test_it_is_given_up_in_the_end(real_broker, caplog):
    async with told(real_broker, *[500] * 9, pauses_s=(0.01, 0.01)) as (api, receiver):
        job = await api.played(webhook=receiver.url)
        await settled(real_broker)
        await until(lambda: outcomes(api, "given_up"))
        assert len(receiver.heard) == 3 == outcomes(api, "failed")
        [line] = [record.getMessage() for record in caplog.records if "given up" in record.getMessage()]
        assert job["id"] in line and "500" in line and "for=me" not in line


async def test_a_log_without_its_request_is_no_error_of_this_program(real_broker, caplog):
    async with told(real_broker, pauses_s=()) as (api, receiver):
        job = await api.submit(webhook=receiver.url)
        api.player(job).lose_request()
        api.player(job).fail()
        await until(lambda: outcomes(api, "given_up"))
        assert not receiver.heard
        [line] = [record.getMessage() for record in caplog.records if record.name == "api.webhooks"]
        assert job["id"] in line and "its log cannot be read" in line


def test_pauses_grow_within_an_hour():
    pauses = WebhookSettings().pauses_s
    assert len(pauses) == 7 and list(pauses) == sorted(set(pauses)) and 3000 < sum(pauses) < 3600
    assert WebhookSettings().claim_s > WebhookSettings().timeout_s


async def test_a_pause_lasts_by_the_brokers_clock(real_broker):
    client = real_broker.client()
    async with told(real_broker, 500, pauses_s=(NEVER_S,)) as (api, receiver):
        job = await api.played(webhook=receiver.url)
        await until(lambda: outcomes(api, "failed"))
        due_in_ms = client.zscore(keys.WEBHOOKS, job["id"]) - client.time()[0] * 1000
        assert NEVER_S * 1000 - PATIENCE_S * 1000 < due_in_ms <= NEVER_S * 1000 + 1000
        assert len(receiver.heard) == 1


async def test_it_is_owed_before_the_job_is_accepted(real_broker, monkeypatch):
    """Whatever happens in between, no accepted job goes untold."""
    async with told(real_broker) as (api, receiver):
        monkeypatch.setattr(log, "append", lambda *args, **kwargs: 1 / 0)
        body = {"model": "hum", "input": "la", "webhook": receiver.url}
        assert (await api.http.post("/v1/jobs", json=body)).status_code == 500
        assert len(owed(real_broker)) == 1


async def test_two_apis_tell_it_once(real_broker):
    async with told(real_broker) as (one, receiver), serving(real_broker, webhooks=telling(receiver.host)) as other:
        receiver.answers.clear()
        await one.played(webhook=receiver.url)
        await until(lambda: receiver.heard)
        for api in (one, other):
            await _looked(api, times=2)
        receiver.answers.set()
        await settled(real_broker)
        assert len(receiver.heard) == 1
        await until(lambda: outcomes(one, "delivered") + outcomes(other, "delivered") == 1)


async def _looked(api, *, times: int) -> None:
    """Wait until an api has looked for what is due so many times from now on."""
    run, looks = api.service.run, []

    async def counted(call):
        reply = await run(call)
        looks.append(call.args[0])
        return reply

    api.service.run = counted
    await until(lambda: looks.count("claim") >= times)


async def test_who_dies_with_a_claim_is_followed_by_another_once_it_has_lapsed(real_broker):
    client = real_broker.client()
    async with told(real_broker, look_every_s=NEVER_S) as (api, receiver):
        job = await api.played(webhook=receiver.url)
        claimed, *due = await api.service.run(log.claim_webhooks(["hum"], ttl_ms=700, most=10))
        assert due == [job["id"], 1]
    async with receiver, serving(real_broker, webhooks=telling(receiver.host)) as api:
        await until(lambda: receiver.heard)
        seconds, micros = client.time()
        assert seconds * 1000 + micros // 1000 >= claimed
        await settled(real_broker)
        assert len(receiver.heard) == 1


async def test_who_wakes_after_its_claim_changes_nothing(broker):
    async with told(broker, look_every_s=NEVER_S) as (api, receiver):
        job = (await api.played(webhook=receiver.url))["id"]
        run = api.service.run
        first, *_ = await run(log.claim_webhooks(["hum"], ttl_ms=1, most=10))

        async def claimed_again():
            claimed, *due = await run(log.claim_webhooks(["hum"], ttl_ms=60_000, most=10))
            return due and (claimed, due)

        second, due = await until(claimed_again)
        assert due == [job, 2]
        assert await run(log.end_webhook(job, claimed=first)) == [0]
        assert await run(log.tell_again(job, claimed=first, pause_ms=0, message=b"late")) == [0]
        assert owed(broker) == [job] and not broker.client().hlen(keys.WEBHOOK_MESSAGES)
        assert await run(log.end_webhook(job, claimed=second)) == [1]
        assert owed(broker) == []


async def test_a_process_claims_no_more_than_it_can_send(real_broker):
    async with told(real_broker, at_once=2, look_every_s=NEVER_S) as (api, receiver):
        receiver.answers.clear()
        for _ in range(3):
            await api.played(1, webhook=receiver.url)
        for _ in range(2):
            await deliver_webhooks(api.service)
            assert len(api.service.webhooks.attempts) == 2
        receiver.answers.set()
        await until(lambda: not api.service.webhooks.attempts)
        await deliver_webhooks(api.service)
        await settled(real_broker)
        assert len({message["data"]["id"] for message in receiver.messages}) == len(receiver.heard) == 3


async def test_a_claim_takes_no_more_than_was_asked_for(broker):
    async with told(broker, look_every_s=NEVER_S) as (api, receiver):
        for _ in range(3):
            await api.played(1, webhook=receiver.url)
        taken = [
            len((await api.service.run(log.claim_webhooks(["hum"], ttl_ms=60_000, most=2)))[1:]) // 2 for _ in range(3)
        ]
        assert taken == [2, 1, 0]


async def test_it_outlives_all_apis_and_the_job(real_broker):
    async with told(real_broker, *[500] * 9, pauses_s=(0.5,) * 100, claim_s=0.5) as (api, receiver):
        job = await api.submit(webhook=receiver.url)
        api.player(job).play(5, 1)
        await until(lambda: outcomes(api, "failed"))
        player = api.player(job)
    player.expire()
    before = receiver.heard[0]
    receiver.statuses.clear()
    async with receiver, serving(real_broker, webhooks=telling(receiver.host)):
        await settled(real_broker)
    headers, body = receiver.heard[-1]
    assert (headers["webhook-id"], body) == (before[0]["webhook-id"], before[1])


async def test_an_idempotency_key_that_comes_again_tells_nothing_twice(real_broker):
    async with told(real_broker) as (api, receiver):
        body, key = {"model": "hum", "input": "la", "webhook": receiver.url}, {"Idempotency-Key": "k"}
        job = (await api.http.post("/v1/jobs", json=body, headers=key)).json()
        assert (await api.http.post("/v1/jobs", json=body, headers=key)).status_code == 200
        api.player(job).play(5, 1)
        await settled(real_broker)
        assert (await api.http.post("/v1/jobs", json=body, headers=key)).status_code == 200
        assert owed(real_broker) == [] and len(receiver.heard) == 1
        producer = await api.service.producer()
        request = (await producer.jobs.state(job["id"])).request
        again = await producer.submit(request, reserve_bytes=1, body=digest(body), idempotency_key="k")
        assert not again.created and owed(real_broker) == []
    async with serving(real_broker) as api:  # where nobody may be told at all
        assert (await api.http.post("/v1/jobs", json=body, headers=key)).status_code == 200


async def test_a_key_that_makes_its_job_anew_is_another_message(real_broker):
    async with told(real_broker) as (api, receiver):
        body, key = {"model": "hum", "input": "la", "webhook": receiver.url}, {"Idempotency-Key": "k"}
        for _ in range(2):
            job = (await api.http.post("/v1/jobs", json=body, headers=key)).json()
            api.player(job).play(5, 1)
            await settled(real_broker)
            api.player(job).expire()
        (first, _), (second, _) = receiver.heard
        assert first["webhook-id"] != second["webhook-id"]


async def test_of_a_purged_job_nothing_is_kept_or_told(broker):
    async with told(broker, look_every_s=NEVER_S) as (api, receiver):
        job = await api.played(webhook=receiver.url)
        await api.http.delete(job["links"]["self"], params={"purge": True})
        assert owed(broker) == []


# --- where it may go ------------------------------------------------------------------------------------------------


class Untouched(HumContract):
    def accept(self, body):
        raise AssertionError("work was done")


@pytest.mark.parametrize(
    ("hosts", "webhook", "why"),
    [
        ((), "https://example.com/", "ask the operator to allow its host"),
        (("example.com",), "https://evil.com/", "ask the operator to allow the host"),
        (("example.com",), "http://example.com/", "https"),
        (("example.com",), "https://me:pw@example.com/", "password"),
        (("example.com",), "https://example.com:8443/", "ask the operator"),
        (("inside.example.com",), "https://inside.example.com/", "private"),
        (("example.com",), "", "https"),
        (("example.com",), "https://[::1", "no URL"),
        (("example.com",), "https://example.com/" + "a" * 2048, "at most 2048"),
        (("example.com",), 7, "string"),
    ],
)
async def test_another_host_is_refused_before_any_work(real_broker, monkeypatch, hosts, webhook, why):
    async def resolved(host, port):
        return [ipaddress.ip_address("10.0.0.1" if host == "inside.example.com" else "93.184.215.14")]

    monkeypatch.setattr(allowed_hosts, "_resolved", resolved)
    async with serving(real_broker, {"hum": Untouched()}, webhooks=telling(*hosts)) as api:
        for route in ("/v1/jobs", "/v1/audio/speech"):
            body = {"model": "hum", "input": "la", "webhook": webhook}
            error = shaped(await api.http.post(route, json=body), 400)
            assert error["param"] == "webhook" and why in error["message"]
    assert not real_broker.client().exists(keys.LIVE) and not owed(real_broker)


async def test_a_host_that_is_allowed_no_more_is_not_asked(real_broker):
    async with told(real_broker, look_every_s=NEVER_S) as (api, receiver):
        await api.played(webhook=receiver.url)
        async with serving(real_broker, webhooks=telling("example.com", pauses_s=())) as api:
            await settled(real_broker)
            await until(lambda: outcomes(api, "given_up"))
        assert not receiver.heard


async def test_hosts_need_a_secret(real_broker):
    with pytest.raises(ValueError, match="--webhook-secret"):
        create_app(real_broker, {"hum": HumContract()}, ApiSettings(webhooks=WebhookSettings(hosts=("example.com",))))
