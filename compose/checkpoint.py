"""Which checkpoint a role serves, and with which deploy file; and the demo one that `songline up` makes for itself."""

from __future__ import annotations

import argparse
import json
import os
import pkgutil
import shutil
import tempfile
from pathlib import Path

from compose.trouble import NO_CHECKPOINT, USAGE, Trouble
from workers import models
from workers.models.family import Bundled, Family, load_family
from workers.settings import BadSettings, family_of


def family_named(name: str) -> Family:
    try:
        return load_family(name)
    except LookupError as error:
        raise Trouble(str(error), USAGE) from error


def family_asked_for(args: argparse.Namespace) -> Family:
    """Whose model the deploy file serves that the flags name. Raises Trouble."""
    try:
        return family_of(str(args.config or args.model))
    except BadSettings as error:
        raise Trouble(str(error), USAGE) from error


def bundled(family: Family) -> Bundled | None:
    """The checkpoint that comes with the family, where it has one: what is served where the flags name none."""
    own = family.bundled
    return own if own is not None and own.folder.is_dir() else None


def deploy_file(args: argparse.Namespace) -> str:
    """The name or path of the deploy file to serve with: the one that the flags name, or the bundled checkpoint's own.
    Raises Trouble."""
    if args.config or args.checkpoint:
        return str(args.config or args.model)
    family = family_asked_for(args)
    own = bundled(family)
    return own.config if own is not None and args.model == family.name else str(args.model)


def find(checkpoint: str | None, family: str, revision: str | None) -> Path:
    """The checkpoint's folder, fetched where it is a repository's id. Raises Trouble saying how to get one."""
    how = f"make a random one with `songline make-checkpoint {family} DIR`, and name it with --checkpoint DIR"
    if not checkpoint:
        raise Trouble(f"no checkpoint was named: {how}", NO_CHECKPOINT)
    from workers.checkpoints import CheckpointError, resolve_checkpoint

    try:
        return resolve_checkpoint(checkpoint, revision)
    except CheckpointError as error:
        raise Trouble(f"{error}\nElse {how}", NO_CHECKPOINT) from error


def make(family: str, size: str, seed: int, folder: Path) -> None:
    """Write a random checkpoint; the folder appears only once it is whole. Raises Trouble."""
    maker = family_named(family)
    if size not in maker.sizes:
        raise Trouble(f"{family} has no size {size!r}; it has: {', '.join(maker.sizes)}", USAGE)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Trouble(f"{folder} is there already: name a folder that is not, or remove it first", USAGE)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise Trouble(f"cannot write to {folder.parent}: {error}", USAGE) from error
    try:
        maker.make_checkpoint(unfinished, size, seed)
        _let_others_read(unfinished)
        os.replace(unfinished, folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _let_others_read(folder: Path) -> None:
    """Temporary folders and safetensors files are made for their owner alone; a service may run as another user."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def demo_folder(family: str, home: Path) -> Path:
    """Where the tiny random checkpoint is kept."""
    return home.expanduser() / "checkpoints" / f"{family}-tiny-0"


def demo(family: str, home: Path) -> Path:
    """The tiny random checkpoint under `home`, made at its first use, by whoever is first."""
    folder = demo_folder(family, home)
    if not folder.is_dir():
        try:
            make(family, "tiny", 0, folder)
        except (OSError, Trouble):
            if not folder.is_dir():
                raise
    return folder


def command(args: argparse.Namespace) -> None:
    """`songline make-checkpoint`."""
    make(args.family, args.size, args.seed or 0, Path(args.folder))
    print(args.folder)


def list_families(args: argparse.Namespace) -> None:
    """`songline models`."""
    names = sorted(module.name for module in pkgutil.iter_modules(models.__path__) if module.ispkg)
    sizes = {name: family_named(name).sizes for name in names}
    if args.as_json:
        print(json.dumps([{"family": name, "sizes": sizes[name]} for name in names], indent=2))
        return
    for name in names:
        print(f"{name:<20} checkpoint sizes: {', '.join(sizes[name])}")
