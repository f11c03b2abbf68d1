"""Files are there whole or not at all, in a folder and in an object store."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import fsspec
import httpx
import pytest

from producer.archive import store as storing
from producer.archive.store import Store
from tests.api.conftest import serving
from tests.ports import free_port
from tests.producer.archive.conftest import caught_up, files


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_folder_needs_nothing_and_is_made(tmp_path, prefix):
    store = Store(f"{prefix}{tmp_path / 'a' / 'b'}/")
    assert store.read("2026/01/02/x.json") is None
    store.check()
    store.write("2026/01/02/x.json", b"one")
    store.write("2026/01/02/x.json", b"two")
    assert store.read("2026/01/02/x.json") == b"two"
    assert files(tmp_path) == {"a/b/2026/01/02/x.json": b"two"}


def test_a_folder_by_a_path_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Store("kept").write("x", b"1")
    assert files(tmp_path) == {"kept/x": b"1"}


def test_what_fails_in_the_middle_leaves_what_was_there(tmp_path, monkeypatch):
    store = Store(str(tmp_path))
    store.write("x", b"one")

    def full(handle):
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", full)
    for name in ("x", "y"):
        with pytest.raises(OSError, match="full"):
            store.write(name, b"two")
    assert files(tmp_path) == {"x": b"one"}


def test_it_is_written_elsewhere_on_the_same_disk_first(tmp_path, monkeypatch):
    """Whoever lists the folder of a day in the middle sees no file by that name."""
    seen = []
    monkeypatch.setattr(os, "fsync", lambda handle: seen.append(sorted(files(tmp_path))))
    Store(str(tmp_path)).write("day/x", b"one")
    [part], *after = seen
    assert part.startswith(".parts/") and after == [["day/x"]] * 2


def test_a_file_is_written_to_disk_and_then_each_folder_above_it(tmp_path, monkeypatch):
    """Any of them may be new, and gone after a power cut."""
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino) or fsync(handle))
    Store(str(tmp_path)).write("2026/01/02/x", b"one")
    path = tmp_path / "2026" / "01" / "02" / "x"
    assert synced == [part.stat().st_ino for part in (path, *path.parents[:4])]


def test_the_root_of_all_is_a_folder_too(monkeypatch):
    written = []
    monkeypatch.setattr(storing, "_put", lambda root, name, content: written.append(root / name))
    Store("/").write("2026/x", b"one")
    assert written == [Path("/2026/x")]


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        Store(str(tmp_path / "file" / "below")).check()


def test_an_object_store(tmp_path):
    store = Store(f"memory://{tmp_path}/songs/")
    store.check()
    assert store.read("2026/x.json") is None
    store.write("2026/x.json", b"one")
    assert store.read("2026/x.json") == b"one"
    assert fsspec.filesystem("memory").cat_file(f"{tmp_path}/songs/2026/x.json") == b"one"


def test_an_url_that_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="nowhere"):
        Store("nowhere://x")


@pytest.fixture
def s3(tmp_path, monkeypatch):
    """A server that speaks S3, in a process of its own: Flask's proxies, once imported, break vLLM's start."""
    if not (find_spec("s3fs") and find_spec("moto") and find_spec("flask")):
        pytest.skip("s3fs or moto is not installed")
    url = f"http://127.0.0.1:{(port := free_port())}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "key")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with open(tmp_path / "moto.log", "w") as log:
        server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stdout=log, stderr=log)
    try:
        while not _answers(url):
            assert server.poll() is None, (tmp_path / "moto.log").read_text()
            time.sleep(0.1)
        yield
    finally:
        server.kill()
        server.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code < 500
    except httpx.TransportError:
        return False


async def test_s3(real_broker, s3):
    fsspec.filesystem("s3").mkdir("songs")
    async with serving(real_broker) as api:
        job = await api.played(2)
        store = Store("s3://songs/kept")
        store.check()
        assert await caught_up(real_broker, store) == (1, 0, 0)
        assert await caught_up(real_broker, store) == (0, 1, 0)
    names = fsspec.filesystem("s3", skip_instance_cache=True).find("songs/kept")
    assert {name.rsplit("/", 1)[1] for name in names} == {f"{job['id']}.json", f"{job['id']}.wav"}
