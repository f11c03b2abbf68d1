"""An api whose jobs are played, and archivers of them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from producer.archive.archiver import Archiver
from producer.archive.settings import ArchiveSettings
from producer.archive.store import Store
from tests.waiting import until

NEVER_S = 3600.0
SETTINGS = ArchiveSettings(look_every_s=0.01, claim_s=NEVER_S, patience_s=NEVER_S)


def archiver(broker, store: Store | Path, on_stuck: Callable[[], None] = lambda: None, **changes) -> Archiver:
    store = store if isinstance(store, Store) else Store(str(store))
    return Archiver(broker.client(), store, replace(SETTINGS, **changes), on_stuck=on_stuck)


async def caught_up(broker, store: Store | Path, **changes) -> tuple[int, int, int]:
    """(jobs archived, there already, failed) of one round over everything."""
    tally = await asyncio.to_thread(archiver(broker, store, **changes).catch_up)
    return tally.written, tally.there, tally.failed


async def runs(archiver: Archiver, condition: Callable[[], object]) -> None:
    """Run an archiver until the condition is met, and stop it."""
    stop = threading.Event()
    running = asyncio.create_task(asyncio.to_thread(archiver.run, stop))
    try:
        await until(lambda: condition() or running.done())
    finally:
        stop.set()
        await running
    assert condition()


def files(folder: Path) -> dict[str, bytes]:
    """All that the archive has, by name."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def facts(folder: Path, job: dict) -> dict:
    [path] = folder.rglob(f"{job['id']}.json")
    return json.loads(path.read_bytes())


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "archive"
