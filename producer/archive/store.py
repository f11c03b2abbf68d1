"""Where the archive is: a folder, or an object store that fsspec knows by its URL."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

_PARTS = ".parts"


class Store:
    """Files by name, each there whole or not at all. What the store's library raises is passed on.

    Raises:
        ValueError: fsspec knows no such URL.
        ImportError: it needs a package for it, which the message names.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._files, self._root = fsspec.url_to_fs(url)
        self._folder = Path(self._root) if isinstance(self._files, LocalFileSystem) else None
        self._root = self._root.rstrip("/")

    def read(self, name: str) -> bytes | None:
        """None where there is no such file."""
        try:
            return self._files.cat_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """An object store has an object once all of it is there; a folder gets a file that was written elsewhere."""
        if self._folder is None:
            self._files.pipe_file(f"{self._root}/{name}", content)
        else:
            _put(self._folder, name, content)

    def check(self) -> None:
        """Raise what keeps files from being written to a folder, or read in a store."""
        if self._folder is None:
            self.read(_PARTS)
            return
        part = _part(self._folder)
        part.touch()
        part.unlink()


def _put(root: Path, name: str, content: bytes) -> None:
    part, path = _part(root), root / name
    try:
        with open(part, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        path.parent.mkdir(parents=True, exist_ok=True)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    for folder in path.parents[: len(Path(name).parts)]:  # up to the root: any of them may be new
        _sync_folder(folder)


def _part(root: Path) -> Path:
    """A file of nobody else's, on the disk of the folder that it is to come to."""
    (root / _PARTS).mkdir(parents=True, exist_ok=True)
    return root / _PARTS / uuid.uuid4().hex


def _sync_folder(folder: Path) -> None:
    """What is in a folder survives a power cut only then."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
