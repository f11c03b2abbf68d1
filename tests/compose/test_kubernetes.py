"""The Kubernetes files: valid by Kubernetes' own schemas, whole, and of commands and settings that there are."""

from __future__ import annotations

from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from api.app import create_app
from api.settings import ApiSettings
from compose.broker import EmbeddedBroker
from compose.cli import parser
from compose.settings import SETTINGS

FOLDER = Path(__file__).parents[2] / "compose" / "kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
OBJECTS = [
    (path.stem, each)
    for path in sorted(FOLDER.glob("*.yaml"))
    if path.stem != "kustomization"
    for each in yaml.safe_load_all(path.read_text())
]
WORKLOADS = {each["metadata"]["name"]: each for _, each in OBJECTS if "template" in each.get("spec", {})}
SONGLINE = {name: each["spec"]["template"]["spec"] for name, each in WORKLOADS.items() if name != "redis"}


@pytest.mark.parametrize("version", ["1.31", "1.34"])
@pytest.mark.parametrize(("file", "described"), OBJECTS, ids=[f"{file}-{each['kind']}" for file, each in OBJECTS])
def test_every_object_is_valid(file, described, version):
    kubernetes_validate.validate(described, version, strict=True)


def test_all_files_are_applied():
    assert sorted(KUSTOMIZATION["resources"]) == sorted({f"{file}.yaml" for file, _ in OBJECTS})


def test_every_variable_is_a_setting():
    [generated] = KUSTOMIZATION["configMapGenerator"]
    assert {literal.partition("=")[0] for literal in generated["literals"]} <= {each.variable for each in SETTINGS}
    for pod in SONGLINE.values():
        [source] = pod["containers"][0]["envFrom"]
        assert source["configMapRef"]["name"] == generated["name"]


@pytest.mark.parametrize("name", SONGLINE)
def test_a_container_runs_a_command_that_there_is(name):
    [container] = SONGLINE[name]["containers"]
    parser().parse_args(container["args"])
    if "exec" in container["livenessProbe"]:
        parser().parse_args(container["livenessProbe"]["exec"]["command"][1:])


def test_the_api_is_asked_for_what_it_answers():
    [container] = SONGLINE["api"]["containers"]
    paths = {route.path for route in create_app(EmbeddedBroker(), {}, ApiSettings()).routes}
    assert {container[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")} <= paths


@pytest.mark.parametrize("name", SONGLINE)
def test_a_container_is_nobody_in_particular(name):
    dockerfile = (FOLDER.parent / "Dockerfile").read_text()
    pod = SONGLINE[name]
    assert f"--uid {pod['securityContext']['runAsUser']} " in dockerfile
    [container] = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    written = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/tmp", dockerfile.split("--home-dir ")[1].split()[0]} <= written
    assert pod["terminationGracePeriodSeconds"] >= 40  # as in compose.yaml: to hand jobs over
