"""Checkpoints on disk: finding one, reading a component's weights strictly, and naming what is wrong with it.

A checkpoint is a folder of components, each a folder with `config.json` and safetensors files, as Hugging Face's
libraries write them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

if TYPE_CHECKING:  # the api finds checkpoints, and loads none
    import torch

_INDEXES = ("modular_model_index.json", "model_index.json")
_WEIGHT_STEMS = ("model", "diffusion_pytorch_model")

_REPO_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.safetensors$")
_READ = frozenset({".json", ".safetensors", ".txt"})  # suffixes of what loaders read
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LISTED = 8  # names that an error message spells out


class CheckpointError(Exception):
    """The checkpoint cannot be used. `str()` says which part of it, and why."""


class PartialDownload(CheckpointError):
    """Files of the checkpoint are missing or cut short; downloading it again completes it."""


def resolve_checkpoint(name: str, revision: str | None = None) -> Path:
    """The local folder of a checkpoint, its components whole.

    Args:
        name: a folder, or a Hugging Face repo id ("owner/name"). A repo is taken from the cache, and downloaded where
            the cache lacks it, unless HF_HUB_OFFLINE is set.
        revision: a branch, tag or commit; for repo ids only.

    Raises:
        CheckpointError: no such folder or repo, or a component without weights.
        PartialDownload: a component is there in part.
    """
    if Path(name).is_dir():
        if revision is not None:
            raise CheckpointError(f"{name} is a folder: a revision ({revision!r}) can only be had of a repo id")
        folder = Path(name)
    elif _REPO_ID.fullmatch(name):
        folder = _snapshot(name, revision)
    else:
        raise CheckpointError(f"{name!r} is neither a folder nor a Hugging Face repo id (owner/name)")
    for component in _modules(folder):
        weight_files(folder, component)
    return folder


def _modules(folder: Path) -> list[str]:
    """The components that should have weights; where there is an index, only what it names is of the checkpoint."""
    there = {path.parent.name for path in folder.glob("*/config.json")}  # a tokenizer or a scheduler has none
    for index in _INDEXES:
        if (folder / index).exists():
            there &= set(_named_components(folder / index))
    return sorted(there)


def _named_components(index: Path) -> list[str]:
    return sorted(name for name, entry in _read_json(index).items() if isinstance(entry, list))


def _snapshot(repo: str, revision: str | None) -> Path:
    from huggingface_hub import constants, errors, snapshot_download

    at = f"{repo} at revision {revision or 'main'}"
    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=_wanted(repo, revision)))
    except getattr(errors, "IncompleteSnapshotError", ()) as error:
        raise PartialDownload(f"the cache {constants.HF_HUB_CACHE} has {at} in part: {error}") from error
    except (errors.LocalEntryNotFoundError, OSError) as error:
        if constants.HF_HUB_OFFLINE:
            where = constants.HF_HUB_CACHE
            raise CheckpointError(f"{at} is not in the cache {where}, and HF_HUB_OFFLINE is set") from error
        raise CheckpointError(f"{at} cannot be downloaded: {error}") from error


def _wanted(repo: str, revision: str | None) -> list[str] | None:
    """What to download of a repo that may hold other formats of its weights too; None for all of it."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    for index in _INDEXES:
        try:
            path = Path(hf_hub_download(repo, index, revision=revision))
        except EntryNotFoundError:
            continue
        return [index, "config.json", *(f"{component}/*" for component in _named_components(path))]
    return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PartialDownload(f"{path} is missing") from None
    except ValueError as error:
        raise PartialDownload(f"{path} is not valid JSON ({error})") from None


def _component_folder(folder: Path, component: str) -> Path:
    path = folder / component
    if not path.is_dir():
        there = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
        raise CheckpointError(f"checkpoint {folder} has no component {component!r}; it has: {_names(there)}")
    return path


def weight_files(folder: Path, component: str) -> list[Path]:
    """The component's safetensors files, all of them there.

    Raises:
        CheckpointError: no component, or one without weights.
        PartialDownload: the index names files that are missing, a download was cut short, or shards have no index.
    """
    path = _component_folder(folder, component)
    cut = _cut_downloads(folder, component)
    for stem in _WEIGHT_STEMS:
        single, index = path / f"{stem}.safetensors", path / f"{stem}.safetensors.index.json"
        if single.exists():
            return [single]
        if single.is_symlink():
            raise PartialDownload(f"{single} points to a file that is not there")
        if index.exists() or index.is_symlink():
            return _shards(index, cut)
    loose = sorted(entry.name for entry in path.iterdir() if _SHARD.search(entry.name))
    if loose:
        raise PartialDownload(f"{path} has shards ({_names(loose)}) but no index that says how many there are")
    if cut:
        raise PartialDownload(f"the download of {path} was cut short: {_names(cut)}")
    wanted = " or ".join(f"{stem}.safetensors" for stem in _WEIGHT_STEMS)
    raise CheckpointError(f"{path} has no weights: neither {wanted} nor an index of shards")


def _shards(index: Path, cut: list[str]) -> list[Path]:
    names = sorted(set(_weight_map(index).values()))
    missing = [name for name in names if not (index.parent / name).exists()]
    if missing:
        also = f"; cut short: {_names(cut)}" if cut else ""
        raise PartialDownload(
            f"{index.parent} is a partial download: {len(missing)} of the {len(names)} files that {index.name} names"
            f" are missing: {_names(missing)}{also}"
        )
    return [index.parent / name for name in names]


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map")
    return weight_map


def _cut_downloads(folder: Path, component: str) -> list[str]:
    """Names of downloads that were begun and not finished: beside the files, or where `hf download` keeps them."""
    places = (folder / component, folder / ".cache" / "huggingface" / "download" / component)
    return sorted(entry.name for place in places if place.is_dir() for entry in place.glob("*.incomplete"))


def load_component(folder: Path, component: str, device: str | torch.device = "cpu") -> dict[str, torch.Tensor]:
    """All of a component's tensors, as stored: no name is changed and nothing is cast.

    Raises:
        CheckpointError: see `weight_files`; also where index and shards disagree.
        PartialDownload: a file is cut short.
    """
    tensors: dict[str, torch.Tensor] = {}
    files = weight_files(folder, component)
    for file in files:
        for name, tensor in _read_tensors(file, device):
            if name in tensors:
                raise CheckpointError(f"{file.parent} has tensor {name!r} twice")
            tensors[name] = tensor
    if files[0].stem not in _WEIGHT_STEMS:
        _match_index(files[0].parent, tensors)
    return tensors


def load_tensors(folder: Path, component: str, names: Collection[str]) -> dict[str, torch.Tensor]:
    """Those of a component's tensors that are named, where they are there; no other is read.

    Raises: as `load_component` does, but index and shards are not compared.
    """
    files = weight_files(folder, component)
    return {name: tensor for file in files for name, tensor in _read_tensors(file, "cpu", names)}


def stated_shapes(folder: Path, component: str) -> dict[str, torch.Tensor]:
    """All of a component's tensors on "meta": their shapes, of which only the files' heads are read.

    Raises: as `load_component` does.
    """
    import torch

    shapes: dict[str, torch.Tensor] = {}
    files = weight_files(folder, component)
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118, it is no mapping
                    shapes[name] = torch.empty(opened.get_slice(name).get_shape(), device="meta")
        except SafetensorError as error:
            raise PartialDownload(f"{file} is cut short or broken ({error})") from None
    if files[0].stem not in _WEIGHT_STEMS:
        _match_index(files[0].parent, shapes)
    return shapes


def component_config(folder: Path, component: str) -> dict[str, Any]:
    """The component's config.json. Raises CheckpointError, PartialDownload."""
    return _read_json(_component_folder(folder, component) / "config.json")


def _read_tensors(
    file: Path, device: str | torch.device, only: Collection[str] | None = None
) -> list[tuple[str, torch.Tensor]]:
    try:
        with safe_open(file, framework="pt", device=str(device)) as opened:
            names = [name for name in opened.keys() if only is None or name in only]  # noqa: SIM118, it is no mapping
            return [(name, opened.get_tensor(name)) for name in names]
    except SafetensorError as error:
        raise PartialDownload(f"{file} is cut short or broken ({error})") from None


def _match_index(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    [index] = path.glob("*.safetensors.index.json")
    named = _weight_map(index).keys()
    if named != tensors.keys():
        raise CheckpointError(
            f"{index} and its shards disagree; only in the index: {_names(sorted(named - tensors.keys()))};"
            f" only in the shards: {_names(sorted(tensors.keys() - named))}"
        )


def fill_module(module: torch.nn.Module, tensors: Mapping[str, torch.Tensor], component: str) -> None:
    """Make the tensors the module's own, without a copy or a cast; the module may have been built on "meta".

    Raises:
        CheckpointError: listing all keys that are missing, unexpected, or of another shape.
    """
    wanted = module.state_dict()
    problems = [f"missing: {name}" for name in sorted(wanted.keys() - tensors.keys())]
    problems += [f"unexpected: {name}" for name in sorted(tensors.keys() - wanted.keys())]
    problems += [
        f"{name} is {tuple(tensors[name].shape)}, the config asks for {tuple(wanted[name].shape)}"
        for name in sorted(wanted.keys() & tensors.keys())
        if wanted[name].shape != tensors[name].shape
    ]
    if problems:
        raise CheckpointError(f"the weights of {component} do not fit its config: {_names(problems, '; ')}")
    module.load_state_dict(dict(tensors), strict=True, assign=True)
    module.requires_grad_(False).eval()


def _names(names: list[str], joint: str = ", ") -> str:
    shown = joint.join(names[:_LISTED]) or "none"
    return shown if len(names) <= _LISTED else f"{shown}{joint}and {len(names) - _LISTED} more"


_digests: dict[tuple[str, int, int], str] = {}  # by path, size and modification time


def weights_digest(folder: Path, components: Iterable[str]) -> str:
    """Hex sha256 over the components' files, by name and content: what a job's bytes depend on. A README is not.

    The same content gives the same digest in a plain folder and in Hugging Face's cache, whose large files are named
    by their sha256 and are not read again.
    """
    files = [
        (component, file)
        for component in sorted(set(components))
        for file in sorted(_component_folder(folder, component).iterdir())
        if file.is_file() and file.suffix in _READ and not file.name.startswith(".")
    ]
    total = hashlib.sha256()
    with ThreadPoolExecutor() as threads:
        digests = threads.map(_file_digest, [file for _, file in files])
        for (component, file), digest in zip(files, digests, strict=True):
            total.update(f"{component}/{file.name} {digest}\n".encode())
    return total.hexdigest()


def _file_digest(file: Path) -> str:
    target = file.resolve()
    if file.is_symlink() and target.parent.name == "blobs" and _SHA256.fullmatch(target.name):
        return target.name
    stat = target.stat()
    key = (str(target), stat.st_size, stat.st_mtime_ns)
    if key not in _digests:
        with target.open("rb") as opened:
            _digests[key] = hashlib.file_digest(opened, "sha256").hexdigest()
    return _digests[key]
