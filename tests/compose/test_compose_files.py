"""The containers' files: what they set exists, what they run is a command, and the GPU's go over the others."""

import json
import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from compose.cli import parser
from compose.settings import SETTINGS
from workers.settings import DEPLOY

ROOT = Path(__file__).parents[2]
FILES = {name: ROOT / "compose" / f"{name}.yaml" for name in ("compose", "gpu")}
PARSED = {name: yaml.safe_load(path.read_text()) for name, path in FILES.items()}


def docker_compose(*argv, **environ):
    """`docker compose`, as the documentation has it: from the repository's root."""
    return subprocess.run(
        ["docker", "compose", *argv], cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True
    )  # fmt: skip


def merged(**environ):
    """The services as Compose reads both files."""
    both = ":".join(str(path.relative_to(ROOT)) for path in FILES.values())
    told = docker_compose("config", COMPOSE_FILE=both, **environ)
    assert told.returncode == 0, told.stderr
    return yaml.safe_load(told.stdout)["services"]


def has_compose() -> bool:
    return bool(shutil.which("docker")) and docker_compose("version").returncode == 0


needs_compose = pytest.mark.skipif(not has_compose(), reason="needs docker compose")


@pytest.mark.parametrize("file", FILES)
def test_every_variable_is_a_setting(file):
    known = {setting.variable for setting in SETTINGS}
    for name, service in PARSED[file]["services"].items():
        assert {key for key in service.get("environment", {}) if key.startswith("SONGLINE_")} <= known, name


@pytest.mark.parametrize("service", ["api", "talker", "acoustic", "archive"])
def test_a_service_runs_a_command_that_there_is(service):
    command = parser().parse_args(PARSED["compose"]["services"][service]["command"]).command
    asked = parser().parse_args(PARSED["compose"]["services"][service]["healthcheck"]["test"][2:])
    assert (asked.command, asked.role) == ("health", command)


def test_the_archive_is_asked_for_and_then_has_a_place():
    service = PARSED["compose"]["services"]["archive"]
    assert parser().parse_args(service["command"]).command in service["profiles"]
    assert service["environment"]["SONGLINE_BROKER"] == "redis://redis:6379/0"
    [mount] = service["volumes"]
    volume, path = mount.split(":")
    assert volume in PARSED["compose"]["volumes"]
    assert service["environment"]["SONGLINE_ARCHIVE"] == f"${{SONGLINE_ARCHIVE:-{path}}}"
    assert f" {path} " in (ROOT / "compose/Dockerfile").read_text(), "its owner is the one who writes there"


def test_the_image_of_gpus_has_extras_that_there_are():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = PARSED["gpu"]["x-songline"]["build"]["args"]["EXTRAS"].split()
    assert extras and set(extras) <= set(project["optional-dependencies"])


def test_what_the_comments_start_is_there():
    text = FILES["gpu"].read_text()
    assert "SONGLINE_CONFIG=minimax_music3_2gpu" in text and (DEPLOY / "minimax_music3_2gpu.yaml").is_file()
    assert "COMPOSE_FILE=compose/compose.yaml:compose/gpu.yaml" in text


@needs_compose
def test_compose_lays_the_gpu_file_over_the_other():
    services = merged(SONGLINE_CONFIG="minimax_music3_2gpu", SONGLINE_CHECKPOINTS="/data/models")
    assert services.keys() - {"archive"} == {"redis", "api", "talker", "acoustic"}  # old Composes tell of profiles too
    for name in ("talker", "acoustic"):
        service = services[name]
        [card] = service["deploy"]["resources"]["reservations"]["devices"]
        assert (card["driver"], card["capabilities"]) == ("nvidia", ["gpu"])
        assert service["environment"]["SONGLINE_CONFIG"] == "minimax_music3_2gpu"
        assert "/data/models" in json.dumps(service["volumes"])
    assert "deploy" not in services["api"]
    for name in ("api", "talker", "acoustic"):
        service = services[name]
        assert service["environment"]["SONGLINE_PLATFORM"] == "cuda"
        assert service["environment"]["SONGLINE_BROKER"] == "redis://redis:6379/0"
        assert (service["image"], service["build"]["args"]["EXTRAS"]) == ("songline:0.5.0-vllm", "vllm")
        assert service["healthcheck"]["test"][1:3] == ["songline", "health"]
        assert service["healthcheck"]["start_period"] in ("30m", "30m0s")
    assert set(services["talker"]["depends_on"]) == {"redis", "acoustic"}


@needs_compose
def test_without_it_no_gpu_is_asked_for():
    told = docker_compose("config")
    assert told.returncode == 0, told.stderr
    services = yaml.safe_load(told.stdout)["services"]
    assert not any("deploy" in service for service in services.values())
    assert services["talker"]["image"] == "songline:0.5.0"


def test_the_version_is_one_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    services = [service for parsed in PARSED.values() for service in parsed["services"].values()]
    ours = {image for service in services if (image := service.get("image", "")).startswith("songline:")}
    assert ours == {f"songline:{version}", f"songline:{version}-vllm"}
    for kustomization in ("kustomization.yaml", "archive/kustomization.yaml"):
        [image] = yaml.safe_load((ROOT / "compose/kubernetes" / kustomization).read_text())["images"]
        assert image["newTag"] == version
    assert f'version="{version}"' in (ROOT / "api/app.py").read_text()
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
