"""Every refusal in OpenAI's shape, with the field and what to do."""

from __future__ import annotations

import asyncio
import json
import signal
import time

import pytest
from redis.exceptions import ResponseError

from api.errors import as_api_error
from tests.api.conftest import serving
from tests.api.player import beat, song
from tests.redis_server import RedisServer
from tests.waiting import PATIENCE_S, until

BODY = {"model": "hum", "input": "la"}


def shaped(answer, status: int) -> dict:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert len(error["message"]) > 15
    return error


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"), ({"model": 3}, "model"), ({"input": None}, "input"), ({"input": ["la"]}, "input"),
        ({"seed": -1}, "seed"), ({"seed": 1 << 63}, "seed"), ({"seed": 10**50}, "seed"),
        ({"seed": 1.5}, "seed"), ({"seed": True}, "seed"),
        ({"voice": "alloy"}, "voice"), ({"max_new_tokens": 0}, "max_new_tokens"), ({"tempo": 3}, "tempo"),
        ({"extra_params": {}}, "extra_params"), ({"response_format": "aac"}, "response_format"),
        ({"response_format": ["wav"]}, "response_format"), ({"stream": "yes"}, "stream"),
        ({"stream_format": "ws"}, "stream_format"), ({"deadline_s": 0}, "deadline_s"),
        ({"deadline_s": 1e9}, "deadline_s"), ({"deadline_s": "1"}, "deadline_s"), ({"user": 3}, "user"),
        ({"metadata": {"a": 1}}, "metadata"), ({"metadata": []}, "metadata"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/audio/speech"])
async def test_each_bad_field_is_named(redis_api, path, fields, param):
    error = shaped(await redis_api.http.post(path, json=BODY | fields), 400)
    assert error["param"] == param and error["type"] == "invalid_request_error"


async def test_bodies_that_are_no_request(redis_api):
    deep = '{"input":' + "[" * 100_000 + "]" * 100_000 + "}"
    surrogate = '{"model":"hum","input":"\\ud800"}'
    for raw in (b"", b"x", b"[1]", b"\xff", b'{"seed":NaN}', deep.encode(), surrogate.encode()):
        error = shaped(await redis_api.http.post("/v1/jobs", content=raw), 400)
        assert error["code"] == "invalid_json", raw[:40]


async def test_bodies_over_the_limit(real_broker):
    async with serving(real_broker, max_body_bytes=1000) as api:
        large = await api.http.post("/v1/jobs", json=BODY | {"input": "a" * 2000})
        assert shaped(large, 413)["code"] == "body_too_large"

        async def pieces():
            for _ in range(20):
                yield b"a" * 100

        shaped(await api.http.post("/v1/jobs", content=pieces()), 413)
        shaped(await api.http.post("/v1/audio/speech", content=b"a" * 3500), 413)
        assert (await api.http.post("/v1/jobs", json=BODY)).status_code == 202
    async with serving(real_broker) as api:
        shaped(await api.http.post("/v1/jobs", content=b"a" * (1 << 20) + b"a"), 413)


async def test_what_a_client_sent_is_cut_in_errors(redis_api):
    long = "x" * 500_000
    for fields in ({"model": long}, {"response_format": long}, {long: 1}):
        answer = await redis_api.http.post("/v1/jobs", json=BODY | fields)
        assert 400 <= answer.status_code < 500 and len(answer.content) < 1000
    job = await redis_api.submit()
    for params in ({"format": long[:9000]}, {"after": "9" * 4000}):
        answer = await redis_api.http.get(job["links"]["stream"], params=params)
        assert shaped(answer, 400)["param"] in params and len(answer.content) < 1000


async def test_routes_and_verbs_that_are_not_there(redis_api):
    assert shaped(await redis_api.http.get("/v1/nothing"), 404)["code"] == "not_found"
    wrong = await redis_api.http.put("/v1/jobs", json={})
    assert shaped(wrong, 405)["code"] == "method_not_allowed" and wrong.headers["allow"] == "GET, POST"
    assert "use GET, POST." in wrong.json()["error"]["message"]
    assert (await redis_api.http.patch("/v1/jobs/x")).headers["allow"] == "DELETE, GET"
    assert shaped(await redis_api.http.get("/v1/jobs", params={"limit": 0}), 400)["param"] == "limit"
    assert shaped(await redis_api.http.post("/v1/jobs", json=BODY | {"model": "x"}), 404)["code"] == "model_not_found"
    bad_key = await redis_api.http.post("/v1/jobs", json=BODY, headers={"Idempotency-Key": "a b"})
    assert shaped(bad_key, 400)["param"] == "Idempotency-Key"


async def test_ready_names_what_is_missing(api):
    now = int(time.time() * 1000)
    missing = await api.http.get("/ready")
    assert missing.status_code == 503
    assert missing.json()["missing"] == ["hum: no talker worker", "hum: no acoustic worker"]
    beat(api.broker, "talker", at_ms=now)
    beat(api.broker, "acoustic", at_ms=now - 11_000)
    beat(api.broker, "acoustic", at_ms=now, model="other")
    assert (await api.http.get("/ready")).json()["missing"] == ["hum: no acoustic worker"]
    beat(api.broker, "acoustic", at_ms=now)
    assert (await api.http.get("/ready")).status_code == 200
    assert (await api.http.get("/health")).json() == {"status": "ok"}


async def test_models_say_what_they_take(redis_api):
    model = (await redis_api.http.get("/v1/models")).json()["data"][0]
    assert (model["id"], model["object"], model["sample_rate"], model["channels"]) == ("hum", "model", 32_000, 2)
    assert {"instructions", "input", "seed"} <= set(model["fields"])


async def test_the_docs_describe_the_routes(redis_api):
    described = (await redis_api.http.get("/openapi.json")).json()
    body = described["paths"]["/v1/audio/speech"]["post"]["requestBody"]["content"]["application/json"]
    assert body["example"]["model"] and "seed" in body["schema"]["properties"]
    assert (await redis_api.http.get("/docs")).status_code == 200


async def test_a_broker_that_is_away_is_said_and_survived(tmp_path):
    """Requests answer 503; a stream that is open waits for the broker, and goes on without gap or repeat."""
    from broker_schemas.connection import RedisBroker

    server = RedisServer(tmp_path)
    try:
        async with serving(RedisBroker(server.url)) as api:
            job = await api.submit()
            player = api.player(job)
            player.admit(5)
            player.sound(1)
            got = b""

            async def listen() -> None:
                nonlocal got
                async with api.http.stream("GET", job["links"]["stream"], params={"format": "pcm"}) as answer:
                    async for piece in answer.aiter_raw():
                        got += piece

            listening = asyncio.create_task(listen())

            async def first():
                return got == song(5, 1)

            await until(first)
            server.kill()
            for path in ("/v1/jobs", job["links"]["self"]):
                away = await api.http.get(path)
                assert shaped(away, 503)["code"] == "broker_unavailable" and "retry-after" in away.headers
            ready = await api.http.get("/ready")
            assert ready.status_code == 503 and ready.json()["broker"] == "away"
            assert (await api.http.get("/health")).status_code == 200
            assert (await api.http.get("/metrics")).status_code == 200
            server.start()
            player.sound(1, last=True)
            player.complete()
            await asyncio.wait_for(listening, PATIENCE_S)
            assert got == song(5, 2)
            assert (await api.http.get(job["links"]["self"])).json()["status"] == "completed"
    finally:
        server.kill()


@pytest.mark.parametrize("said", ["MISCONF", "NOREPLICAS", "CLUSTERDOWN", "MASTERDOWN", "OOM", "READONLY"])
def test_a_broker_that_cannot_serve_now_is_worth_another_try(said):
    error = as_api_error(ResponseError(f"{said} for the time being"))
    assert error.status == 503 and error.type == "server_error" and "Retry-After" in error.headers
    assert said in str(error)


def test_what_else_a_broker_refuses_is_an_error_of_this_program():
    assert as_api_error(ResponseError("ERR wrong number of arguments")).status == 500


async def test_a_broker_that_takes_no_writes_is_said(tmp_path):
    from broker_schemas.connection import RedisBroker

    server = RedisServer(tmp_path)
    try:
        broker = RedisBroker(server.url)
        async with serving(broker) as api:
            job = await api.submit()
            broker.client().config_set("min-replicas-to-write", 1)
            for verb, path in (("POST", "/v1/jobs"), ("DELETE", job["links"]["self"])):
                refused = await api.http.request(verb, path, json=BODY if verb == "POST" else None)
                assert shaped(refused, 503)["code"] == "broker_unavailable" and "retry-after" in refused.headers
            assert (await api.http.get(job["links"]["self"])).status_code == 200
    finally:
        server.kill()


async def test_a_broker_that_does_not_answer_is_said_soon(tmp_path, monkeypatch):
    from broker_schemas.connection import RedisBroker

    monkeypatch.setattr("api.about._PATIENCE_S", 0.2)
    server = RedisServer(tmp_path)
    try:
        async with serving(RedisBroker(server.url)) as api:
            await api.submit()
            server._process.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            for path in ("/ready", "/metrics", "/health"):
                answer = await api.http.get(path)
                assert answer.status_code == (503 if path == "/ready" else 200)
            assert "songline_live_jobs NaN" in (await api.http.get("/metrics")).text
            assert time.monotonic() - began < 12
            server._process.send_signal(signal.SIGCONT)
            assert (await api.http.get("/v1/jobs")).status_code == 200
    finally:
        server.kill()


async def test_an_api_starts_before_its_broker(tmp_path):
    from broker_schemas.connection import RedisBroker

    server = RedisServer(tmp_path)
    server.kill()
    try:
        async with serving(RedisBroker(server.url)) as api:
            assert (await api.http.get("/health")).status_code == 200
            shaped(await api.http.post("/v1/jobs", json=BODY), 503)
            server.start()
            assert (await api.http.post("/v1/jobs", json=BODY)).status_code == 202
    finally:
        server.kill()


async def test_every_answer_of_a_refused_key_is_json(real_broker):
    async with serving(real_broker, api_keys=("key-a",)) as api:
        for path in ("/v1/jobs", "/v1/models", "/v1/jobs/x/stream"):
            assert json.loads((await api.http.get(path)).content)["error"]["code"] == "invalid_api_key"
        assert (await api.http.get("/health")).status_code == 200


def test_keys_that_cannot_be_owners_are_refused_at_the_start():
    from api.auth import Keyring

    for bad in ("an owner:key", "name:", ""):
        with pytest.raises(ValueError):
            Keyring([bad])
    keyring = Keyring(["key-a"])
    assert keyring.owner("Bearer key-a") == keyring.owner("bearer  key-a ") != "anonymous"
