"""The Kubernetes files: valid by Kubernetes' own schemas, whole, and of commands and settings that there are."""

from __future__ import annotations

import os
import shutil
import subprocess
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
PIECES = {path.parent: yaml.safe_load(path.read_text()) for path in FOLDER.rglob("kustomization.yaml")}
OBJECTS = [
    (path.stem, each)
    for path in sorted(FOLDER.rglob("*.yaml"))
    if path.stem != "kustomization"
    for each in yaml.safe_load_all(path.read_text())
]
WORKLOADS = {each["metadata"]["name"]: each for _, each in OBJECTS if "template" in each.get("spec", {})}
SONGLINE = {name: each["spec"]["template"]["spec"] for name, each in WORKLOADS.items() if name != "redis"}

needs_kubectl = pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl, for its kustomize")


@pytest.mark.parametrize("version", ["1.31", "1.34"])
@pytest.mark.parametrize(("file", "described"), OBJECTS, ids=[f"{file}-{each['kind']}" for file, each in OBJECTS])
def test_every_object_is_valid(file, described, version):
    kubernetes_validate.validate(described, version, strict=True)


@pytest.mark.parametrize("folder", PIECES, ids=lambda folder: folder.name)
def test_all_files_are_applied(folder):
    files = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    assert files and sorted(PIECES[folder]["resources"]) == sorted(files)


def test_what_is_asked_for_by_name_is_a_component():
    assert {folder.name: piece["kind"] for folder, piece in PIECES.items()} == {
        "kubernetes": "Kustomization", "archive": "Component",
    }  # fmt: skip


@needs_kubectl
@pytest.mark.parametrize(("own", "namespace"), [({}, "songline"), ({"namespace": "mine"}, "mine")], ids=str)
def test_the_archive_goes_beside_the_rest(tmp_path, own, namespace):
    base = os.path.relpath(FOLDER, tmp_path)
    overlay = {"resources": [base], "components": [f"{base}/archive"], **own}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    told = subprocess.run(["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    built = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(told.stdout)}
    pods = {name: built["Deployment", name]["spec"]["template"]["spec"] for name in ("archive", "talker")}
    [archive], [talker] = (pod["containers"] for pod in pods.values())
    assert archive["image"] == talker["image"] and archive["envFrom"][0] == talker["envFrom"][0]
    assert ("ConfigMap", archive["envFrom"][0]["configMapRef"]["name"]) in built
    for kind in ("Deployment", "PersistentVolumeClaim"):
        assert built[kind, "archive"]["metadata"]["namespace"] == namespace


def test_the_archive_is_a_place_that_the_pod_has_and_may_write_to():
    pod = SONGLINE["archive"]
    [container] = pod["containers"]
    [place] = [each["value"] for each in container["env"] if each["name"] == "SONGLINE_ARCHIVE"]
    [volume] = [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == place]
    [claim] = [each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"] if each["name"] == volume]
    assert claim in {each["metadata"]["name"] for _, each in OBJECTS if each["kind"] == "PersistentVolumeClaim"}
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsUser"]


def test_every_variable_is_a_setting():
    known = {each.variable for each in SETTINGS}
    [generated] = PIECES[FOLDER]["configMapGenerator"]
    assert {literal.partition("=")[0] for literal in generated["literals"]} <= known
    for pod in SONGLINE.values():
        [container] = pod["containers"]
        assert {each["name"] for each in container.get("env", [])} <= known
        assert container["envFrom"][0]["configMapRef"]["name"] == generated["name"]


@pytest.mark.parametrize("name", SONGLINE)
def test_a_container_runs_a_command_that_there_is(name):
    [container] = SONGLINE[name]["containers"]
    command = parser().parse_args(container["args"]).command
    if "exec" in container["livenessProbe"]:
        assert parser().parse_args(container["livenessProbe"]["exec"]["command"][1:]).role == command


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
