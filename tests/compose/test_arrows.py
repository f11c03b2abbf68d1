"""Who may import whom, and what a model may know."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"broker_schemas", "producer", "api", "workers", "compose"}
MAY_IMPORT = {
    "broker_schemas": set(),
    "producer": {"broker_schemas"},
    "api": {"broker_schemas", "producer"},
    "workers": {"broker_schemas", "producer"},
    "compose": PACKAGES,
}


def imports(path):
    """Top-level names of all that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full"
            yield node.module.split(".")[0]


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_arrows_go_one_way(package):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        others = set(imports(path)) & PACKAGES - {package}
        assert others <= MAY_IMPORT[package], f"{path.relative_to(ROOT)} imports {others - MAY_IMPORT[package]}"


def test_models_and_runners_know_nothing_of_redis():
    for folder in ("models", "runners"):
        for path in sorted((ROOT / "workers" / folder).rglob("*.py")):
            assert not {"redis", "fakeredis"} & set(imports(path)), path.relative_to(ROOT)


def test_every_import_is_declared():
    declared = (ROOT / "pyproject.toml").read_text().lower()
    known = {"yaml": "pyyaml", "hibari": "hibari-tts", "PIL": "pillow"}
    with_others = {"starlette": "fastapi", "pydantic": "fastapi", "anyio": "fastapi", "vllm": "vllm"}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for name in set(imports(path)) - PACKAGES - set(sys.stdlib_module_names):
                wanted = known.get(name) or with_others.get(name) or name.replace("_", "-")
                assert f'"{wanted}' in declared, f"{path.relative_to(ROOT)} imports {name}"
