"""Deploy files: how a model is served. `workers/deploy/<model>.yaml`; an overlay names its `base_config`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from broker_schemas import keys
from workers.models.family import Family, load_family

DEPLOY = Path(__file__).parent / "deploy"
MODEL_RUNNERS = ("torch", "v1", "v2")


class BadSettings(ValueError):
    """A deploy file cannot be served; the message says what to change."""


@dataclass(frozen=True, slots=True)
class TalkerSettings:
    model_runner: str = "torch"  # torch, or vLLM's Model Runner: v1 | v2
    max_jobs: int = 16  # songs at once; each takes the model's rows (two where it is guided)
    max_model_len: int = 10240  # positions of a row: prompt and frames
    prefill_chunk: int = 64  # prompt tokens that a row computes at a time
    threads: int = 1
    ready_limit: int = 32  # jobs that may wait for, or be in, the acoustic stage; over it the talker admits no more
    options: dict[str, Any] = field(default_factory=dict)  # the family's own

    # For vLLM alone.
    max_num_batched_tokens: int | None = None  # of one step; by default one decode of all rows and one chunk of a job's
    gpu_memory_utilization: float = 0.9  # the part of the card that weights, cache and graphs may take
    num_gpu_blocks: int | None = None  # blocks of the key-value cache, where not as many as fit
    kv_cache_gib: float | None = None  # its size, where not what is left; 1 on the CPU
    batch_invariant: bool = False  # vLLM's own batch-invariant kernels
    exclusive_prefill: bool = True  # a step prefills one job, or decodes: its shape is never the load's
    compile_draw: bool = False  # torch.compile fuses the small kernels of the draw; CUDA only
    compilation: dict[str, Any] = field(default_factory=dict)  # vLLM's compilation_config, over what is set here


@dataclass(frozen=True, slots=True)
class AcousticSettings:
    max_num_seqs: int = 16  # jobs held at once; one window is decoded at a time
    max_num_batched_tokens: int | None = None  # of one step, where a runner batches windows: codes of all its rows
    threads: int = 1
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    ttl_s: float = 10.0  # a lease lapses when it was not renewed for so long
    stall_s: float = 120.0  # a process whose step does not end for so long ends itself
    max_strikes: int = 3  # takeovers in a row with nothing new logged, before the job fails
    orphan_s: float = 300.0  # a job whose profile no worker has fails after so long
    sweep_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Settings:
    """One model as this process serves it."""

    family: str
    model: str  # the name that requests use
    checkpoint: Path
    talker: TalkerSettings = TalkerSettings()
    acoustic: AcousticSettings = AcousticSettings()
    leases: LeaseSettings = LeaseSettings()
    revision: str | None = None


def load(
    config: str, checkpoint: Path, *, model: str | None = None, overrides: dict[str, Any] | None = None,
    platform: str = "cpu",
) -> Settings:  # fmt: skip
    """Read a deploy file.

    Args:
        config: a name in `workers/deploy`, or a path.
        overrides: the same layout as the file; wins over it.
        platform: whose block of `platforms` is laid over the rest.

    Raises:
        BadSettings: an unknown key, a wrong type, or a budget too small; says the number that would do.
    """
    tree = _merge(_read(config, ()), {})
    platforms = tree.pop("platforms", {})
    if not isinstance(platforms, dict) or not isinstance(platforms.get(platform, {}), dict):
        raise BadSettings("platforms must be a map of maps of settings")
    tree = _merge(tree, platforms.get(platform, {}))
    tree = _merge(tree, overrides or {})
    tree.pop("base_config", None)
    if "family" not in tree:
        raise BadSettings(f"{config} names no family: set `family`, or `base_config` to a file that does")
    try:
        family = load_family(tree.pop("family"))
    except LookupError as error:
        raise BadSettings(str(error)) from error
    settings = Settings(
        family=family.name,
        model=_name(model or tree.pop("model", family.name)),
        checkpoint=checkpoint,
        talker=_section(TalkerSettings, tree.pop("talker", {}), "talker"),
        acoustic=_section(AcousticSettings, tree.pop("acoustic", {}), "acoustic"),
        leases=_section(LeaseSettings, tree.pop("leases", {}), "leases"),
    )
    tree.pop("model", None)
    if tree:
        raise BadSettings(
            f"unknown key {sorted(tree)[0]!r} in {config}: known are family, model, talker, acoustic, leases"
        )
    _check_budgets(settings, family)
    return settings


def _name(model: Any) -> str:
    try:
        return keys.checked(model, "the model's name")
    except (TypeError, ValueError) as error:
        raise BadSettings(f"the model's name {model!r} cannot be part of a key: {error}") from error


def _read(config: str, seen: tuple[Path, ...]) -> dict[str, Any]:
    path = Path(config)
    if not path.is_file():
        named = DEPLOY / f"{config}.yaml"
        if not named.is_file():
            known = ", ".join(sorted(file.stem for file in DEPLOY.glob("*.yaml")))
            raise BadSettings(f"no deploy file {config!r}: give a path, or one of {known}")
        path = named
    path = path.resolve()
    if path in seen:
        raise BadSettings(f"{path} is its own base_config")
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise BadSettings(f"{path} is no YAML that can be read: {error}") from error
    if not isinstance(tree, dict):
        raise BadSettings(f"{path} must be a map of settings")
    base = tree.get("base_config")
    if base is None:
        return tree
    if not isinstance(base, str):
        raise BadSettings(f"base_config must name a deploy file, got {base!r}")
    beside = path.parent / base
    return _merge(_read(str(beside) if beside.is_file() else base, (*seen, path)), tree)


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both_maps = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both_maps else value
    return merged


def _section(kind: type, values: dict[str, Any], name: str) -> Any:
    known = {f.name: f for f in fields(kind)}
    if not isinstance(values, dict):
        raise BadSettings(f"{name} must be a map of settings, got {values!r}")
    for key, value in values.items():
        if key not in known:
            raise BadSettings(f"unknown key {name}.{key}: known are {', '.join(sorted(known))}")
        if value is None and known[key].default is None:
            continue
        _check_type(f"{name}.{key}", known[key].type.removesuffix(" | None"), value)
    return kind(**values)


def _check_type(name: str, wanted: str, value: Any) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if wanted in ("int", "float") and not (number and 0 < value < math.inf):
        raise BadSettings(f"{name} must be a number over 0, got {value!r}")
    if wanted == "int" and value != int(value):
        raise BadSettings(f"{name} must be a whole number, got {value!r}")
    if wanted == "str" and not isinstance(value, str):
        raise BadSettings(f"{name} must be a string, got {value!r}")
    if wanted == "bool" and not isinstance(value, bool):
        raise BadSettings(f"{name} must be true or false, got {value!r}")
    if wanted.startswith("dict") and not isinstance(value, dict):
        raise BadSettings(f"{name} must be a map, got {value!r}")


def _check_budgets(settings: Settings, family: Family) -> None:
    _check_windows(settings.acoustic, family)
    _check_steps(settings.talker, family)


def _check_windows(acoustic: AcousticSettings, family: Family) -> None:
    a_row = family.plan.longest_span * family.codebooks
    budget, needed = acoustic.max_num_batched_tokens, acoustic.max_num_seqs * a_row
    if budget is not None and budget < needed:
        raise BadSettings(
            f"acoustic.max_num_batched_tokens is {budget}, and {acoustic.max_num_seqs} rows need {needed}: a span "
            f"covers up to {family.plan.longest_span} frames of {family.codebooks} codes, and a window is never split; "
            f"set it to {needed} or more"
        )


def _check_steps(talker: TalkerSettings, family: Family) -> None:
    if talker.model_runner not in MODEL_RUNNERS:
        raise BadSettings(
            f"talker.model_runner {talker.model_runner!r} is not known: use one of {', '.join(MODEL_RUNNERS)}"
        )
    budget, needed = talker.max_num_batched_tokens, step_tokens(talker, family)
    if budget is not None and budget < needed:
        raise BadSettings(
            f"talker.max_num_batched_tokens is {budget}, and a step needs {needed}: {talker.max_jobs} jobs of "
            f"{family.rows} rows, and the chunks of {talker.prefill_chunk} tokens of a job that is prefilled; set it to "
            f"{needed} or more, or lower talker.max_jobs or talker.prefill_chunk"
        )


def step_tokens(talker: TalkerSettings, family: Family) -> int:
    """The fewest tokens that a step's budget may have: a decode of every row, and a chunk for each row of one job."""
    decode, prefill = family.rows * talker.max_jobs, family.rows * talker.prefill_chunk
    return max(decode, prefill) if talker.exclusive_prefill else decode + prefill
