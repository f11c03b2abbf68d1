"""Whether a checkpoint is whole: what the strict loader would refuse, found by the files' heads alone."""

from __future__ import annotations

from pathlib import Path

from compose.doctor.finding import Finding, note, ok, wrong
from workers.checkpoints import CheckpointError, component_config, resolve_checkpoint, stated_shapes
from workers.models.family import Family
from workers.runners.vllm_checkpoint import check_backbone

_MIB = 1 << 20


def find(checkpoint: str | None, revision: str | None, unnamed: Path) -> tuple[Path | None, Finding | None]:
    """The checkpoint's folder, if it is on this machine: nothing is downloaded.

    Args:
        unnamed: what `up` serves where none is named; it may be still to be made.
    """
    if checkpoint is None:
        there = unnamed.is_dir()
        return (unnamed, None) if there else (None, note("checkpoint", "none is named", "name one: --checkpoint DIR"))
    if Path(checkpoint).is_dir():
        return Path(checkpoint), None
    from huggingface_hub import errors, snapshot_download

    try:
        return Path(snapshot_download(checkpoint, revision=revision, local_files_only=True)), None
    except (errors.LocalEntryNotFoundError, errors.HFValidationError, OSError, ValueError) as error:
        said = f"{checkpoint} is no folder here, and not in the cache: {str(error).splitlines()[0]}"
        return None, wrong("checkpoint", said, "name a folder, or start a worker once, which downloads a repository")


def whole(folder: Path, family: Family, max_model_len: int) -> Finding:
    """Every component's configs, tokenizer and weights: their files, tensors, and the decoder's shapes."""
    components = dict.fromkeys((*family.talker_components, *family.acoustic_components))
    try:
        resolve_checkpoint(str(folder))
        with_weights = [component for component in components if _has_weights(folder, component)]
        tensors = sum(len(stated_shapes(folder, component)) for component in with_weights)
        check_backbone(family.backbone(folder))
        family.contract(folder, max_model_len)
    except (CheckpointError, OSError, ValueError, KeyError) as error:
        said = str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
        return wrong("checkpoint", f"{folder}: {said}", "download it again, or make another: songline make-checkpoint")
    size = sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
    return ok("checkpoint", f"{folder} is whole: {tensors} tensors, {size / _MIB:,.0f} MiB")


def _has_weights(folder: Path, component: str) -> bool:
    """Whether a component should have weights: tokenizer and scheduler have no config.json. Raises CheckpointError."""
    place = folder / component
    if not place.is_dir():
        raise CheckpointError(f"checkpoint {folder} has no component {component!r}")
    if not (place / "config.json").is_file() and not any(place.glob("*.safetensors*")):
        return False
    component_config(folder, component)
    return True
