"""What the documentation names is there: commands, flags, files and links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compose.cli import COMMANDS
from compose.settings import SETTINGS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_command_that_is_named_is_one(page):
    named = set(re.findall(r"(?:^|`|\$ )songline ([a-z][a-z-]+)", page.read_text(), re.MULTILINE))
    assert named <= {command.name for command in COMMANDS}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_leads_to_a_file(page):
    for target in re.findall(r"\]\(([A-Za-z0-9.][\w./-]*)(?:#[\w-]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_flags_that_an_operator_is_told_of():
    known = {f"--{setting.name.replace('_', '-')}" for setting in SETTINGS}
    assert set(re.findall(r"`(--[a-z-]+)", (ROOT / "docs/operating.md").read_text())) <= known


def test_an_error_that_an_operator_is_told_of_is_one():
    """The codes stand in the code that raises them."""
    sources = "".join(path.read_text() for path in (ROOT / "workers").rglob("*.py"))
    for code in re.findall(r"`failed`, `(\w+)`", (ROOT / "docs/operating.md").read_text()):
        assert f'"{code}"' in sources, code
