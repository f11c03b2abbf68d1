"""The sections' results as one Markdown page, made anew from their JSON files whenever one is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.bench.gpu.plans import EXPECTED_S

_TITLES = {
    "alone": "Songs sent alone",
    "concurrent": "Songs sent together: the same bytes as alone",
    "pressure": "Eight songs in too little memory",
    "takeover": "Songs taken over from their logged codes",
    "steps": "A step's time and its parts",
    "acoustic": "A window of the acoustic stage",
    "pipeline": "The whole pipeline",
}


def write(folder: Path) -> None:
    """table.md in the folder, of all sections that have results there."""
    pages = []
    for section in EXPECTED_S:
        path = folder / f"{section}.json"
        if path.exists():
            pages.append(_page(section, json.loads(path.read_text())))
    (folder / "table.md").write_text("\n\n".join(pages) + "\n")


def _page(section: str, result: dict[str, Any]) -> str:
    about = ", ".join(f"{name} {value}" for name, value in result["about"].items() if name != "command")
    notes = [f"- {note}" for note in result["notes"]]
    lines = [
        f"## {_TITLES[section]}",
        f"`{result['about']['command']}`",
        about,
        table(result["rows"]),
        "\n".join(notes),
    ]
    return "\n\n".join(line for line in lines if line)


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown; a column for each plain value that a row has, in the order in which they first come."""
    columns = list(dict.fromkeys(name for row in rows for name, value in row.items() if _plain(value)))
    if not columns:
        return ""
    lines = [columns, ["---"] * len(columns), *([_cell(row.get(name)) for name in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float))


def _cell(value: Any) -> str:
    if value is None or not _plain(value):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
    return str(value).replace("|", "\\|").replace("\n", " ")
