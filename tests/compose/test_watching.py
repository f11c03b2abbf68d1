"""Prometheus and Grafana beside the stack: what they read is there, and what they show is told."""

import json
import re
from pathlib import Path

import pytest
import yaml

from api.metrics import Metrics
from broker_schemas.heartbeat import Heartbeat

COMPOSE = Path(__file__).parents[2] / "compose"
DASHBOARDS = sorted((COMPOSE / "grafana" / "dashboards").glob("*.json"))


def told() -> set[str]:
    """Names of all that an api tells, as Prometheus keeps them."""
    metrics = Metrics()
    metrics.workers.beats = [Heartbeat("w", "talker", "m", "p", at=0, counts={"draws": 1})]
    names = set()
    for family in metrics.registry.collect():
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
        names |= {family.name + suffix for suffix in suffixes}
    return names


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_asks_for_what_is_told(path):
    board = json.loads(path.read_text())
    asked = {name for panel in board["panels"] for target in panel["targets"]
             for name in re.findall(r"songline_\w+", target["expr"])}  # fmt: skip
    assert asked and asked <= told()
    assert {panel["datasource"]["uid"] for panel in board["panels"]} == {
        source["uid"]
        for source in yaml.safe_load((COMPOSE / "grafana/provisioning/datasources/prometheus.yaml").read_text())[
            "datasources"
        ]
    }


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_what_every_api_tells_of_a_worker_is_taken_once(path):
    for panel in json.loads(path.read_text())["panels"]:
        for target in panel["targets"]:
            asked = re.findall(r"max by \(worker\b[^)]*\) \((?:rate|increase)?\(?songline_worker_", target["expr"])
            assert len(asked) == target["expr"].count("songline_worker_"), panel["title"]


def test_webhooks_and_the_archive_are_shown():
    boards = "".join(path.read_text() for path in DASHBOARDS)
    for told in ("webhooks_total", "webhooks_waiting", "unarchived_jobs", "unarchived_oldest_seconds", "worker_stuck"):
        assert f"songline_{told}" in boards
    assert 'role=\\"archive\\"' in boards, "what archivers did"


def test_prometheus_reads_the_api_where_it_serves():
    services = {
        name: yaml.safe_load((COMPOSE / f"{name}.yaml").read_text())["services"] for name in ("compose", "watch")
    }
    [job] = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())["scrape_configs"]
    [discovery] = job["dns_sd_configs"]
    assert set(discovery["names"]) <= services["compose"].keys()
    command = services["compose"]["api"]["command"]
    assert str(discovery["port"]) == command[command.index("--port") + 1]


def test_what_is_mounted_is_there():
    watch = yaml.safe_load((COMPOSE / "watch.yaml").read_text())
    mounts = [volume.split(":")[0] for service in watch["services"].values() for volume in service.get("volumes", [])]
    assert mounts and all(
        (COMPOSE / source).exists() if source.startswith(".") else source in watch["volumes"] for source in mounts
    )
