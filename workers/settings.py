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
REPLAYS = ("chunks", "steps")
PLATFORMS = ("cpu", "cuda")


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
    gpu_memory_utilization: float = 0.9  # the part of the card that weights, cache and graphs may take; at most 1
    num_gpu_blocks: int | None = None  # blocks of the key-value cache, where not as many as fit
    kv_cache_gib: float | None = None  # its size, where not what is left; 1 on the CPU
    batch_invariant: bool = False  # vLLM's own batch-invariant kernels
    exclusive_prefill: bool = True  # a step prefills one job, or decodes: its shape is never the load's
    prefill_graphs: bool = False  # a prefill's step is CUDA graphs between its attentions, padded to one of few sizes
    compile_draw: bool = False  # torch.compile fuses the small kernels of the draw; CUDA only
    replay: str = "chunks"  # how known frames are computed again: chunks of a decode step's shape | steps, one by one
    compilation: dict[str, Any] = field(default_factory=dict)  # vLLM's compilation_config, over what is set here


@dataclass(frozen=True, slots=True)
class AcousticSettings:
    max_num_seqs: int = 16  # jobs held at once
    max_num_batched_tokens: int | None = None  # of one step, where a runner batches windows: codes of all its rows
    gather_s: float = 0.05  # how long a batch of windows that has room yet may wait for more, where nobody runs dry
    hold_s: float | None = None  # how long a window is held back that nobody needs yet, for one that somebody does
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
        overrides: the same layout as the file, but for `platforms`; wins over it.
        platform: whose block of each file's `platforms` is laid over the rest of that file. A file's own word, in a
            block or not, wins over all that its `base_config` says.

    Raises:
        BadSettings: an unknown key, a wrong type, or a budget too small; says the number that would do.
        CheckpointError: the checkpoint's config, by which a budget is judged, is not one of the family.
    """
    if platform not in PLATFORMS:
        raise BadSettings(f"no platform {platform!r}: use one of {', '.join(PLATFORMS)}")
    tree = merge(_read(config, platform, ()), _with_runner_placed(overrides or {}))
    tree.pop("base_config", None)
    family = _family(tree, config)
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
            f"unknown key {sorted(tree)[0]!r} in {config}: known are family, model, model_runner, talker, acoustic, "
            "leases, platforms, base_config"
        )
    _check(settings, family)
    return settings


def family_of(config: str) -> Family:
    """Whose model a deploy file, by its name or path, serves. Raises BadSettings."""
    return _family(_read(config, PLATFORMS[0], ()), config)


def _family(tree: dict[str, Any], config: str) -> Family:
    if "family" not in tree:
        raise BadSettings(f"{config} names no family: set `family`, or `base_config` to a file that does")
    try:
        return load_family(tree.pop("family"))
    except LookupError as error:
        raise BadSettings(str(error)) from error


def _name(model: Any) -> str:
    try:
        return keys.checked(model, "the model's name")
    except (TypeError, ValueError) as error:
        raise BadSettings(f"the model's name {model!r} cannot be part of a key: {error}") from error


def _read(config: str, platform: str, seen: tuple[Path, ...]) -> dict[str, Any]:
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
    tree = _on(platform, tree)
    base = tree.get("base_config")
    if base is None:
        return tree
    if not isinstance(base, str):
        raise BadSettings(f"base_config must name a deploy file, got {base!r}")
    beside = path.parent / base
    return merge(_read(str(beside) if beside.is_file() else base, platform, (*seen, path)), tree)


def _on(platform: str, tree: dict[str, Any]) -> dict[str, Any]:
    """One file's settings for one platform."""
    blocks = tree.pop("platforms", None) or {}
    if not isinstance(blocks, dict) or not all(isinstance(block, dict) for block in blocks.values()):
        raise BadSettings("platforms must be a map of maps of settings")
    for name, block in blocks.items():
        if name not in PLATFORMS:
            raise BadSettings(f"unknown platform platforms.{name}: known are {', '.join(PLATFORMS)}")
        if misplaced := {"platforms", "base_config", "family"} & block.keys():
            raise BadSettings(f"{sorted(misplaced)[0]} cannot stand in platforms.{name}: it is the whole file's")
    return merge(_with_runner_placed(tree), _with_runner_placed(blocks.get(platform, {})))


def _with_runner_placed(tree: dict[str, Any]) -> dict[str, Any]:
    """A `model_runner` outside of `talker` is the talker's: no other stage has one."""
    if "model_runner" not in tree:
        return tree
    placed = dict(tree)
    runner, talker = placed.pop("model_runner"), placed.get("talker", {})
    if not isinstance(talker, dict):
        return placed  # which `_section` refuses
    if talker.get("model_runner", runner) != runner:
        raise BadSettings(f"model_runner is {runner!r} and talker.model_runner {talker['model_runner']!r}: give one")
    return merge(placed, {"talker": {"model_runner": runner}})


def merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, key by key where both are maps."""
    merged = dict(below)
    for key, value in above.items():
        both_maps = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both_maps else value
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


def _check(settings: Settings, family: Family) -> None:
    _check_windows(settings, family)
    _check_runner(settings.talker)
    _check_steps(settings.talker, family)


def _check_windows(settings: Settings, family: Family) -> None:
    acoustic, budget = settings.acoustic, settings.acoustic.max_num_batched_tokens
    if budget is None:
        return
    codebooks = family.codebooks(settings.checkpoint)
    needed = acoustic.max_num_seqs * family.longest_span * codebooks
    if budget < needed:
        raise BadSettings(
            f"acoustic.max_num_batched_tokens is {budget}, and {acoustic.max_num_seqs} rows need {needed}: a span "
            f"covers up to {family.longest_span} frames of {codebooks} codes, and a window is never split; "
            f"set it to {needed} or more"
        )


def _check_runner(talker: TalkerSettings) -> None:
    runner, device = talker.model_runner, talker.options.get("device", "cpu")
    if runner not in MODEL_RUNNERS:
        raise BadSettings(f"talker.model_runner {runner!r} is not known: use one of {', '.join(MODEL_RUNNERS)}")
    if talker.replay not in REPLAYS:
        raise BadSettings(f"talker.replay {talker.replay!r} is not known: use one of {', '.join(REPLAYS)}")
    if runner == "torch":
        return
    if talker.gpu_memory_utilization > 1:
        raise BadSettings(
            f"talker.gpu_memory_utilization is {talker.gpu_memory_utilization:g}: it is a part of the card, at most 1"
        )
    if runner == "v2" and device == "cpu":
        raise BadSettings(
            "talker.model_runner v2 is for CUDA, and talker.options.device is cpu: set model_runner to v1, or the "
            "device to cuda (--platform cuda does where the deploy file has a block for it)"
        )
    if device not in ("cpu", "cuda", "cuda:0"):
        raise BadSettings(
            f"talker.options.device is {device}, and vLLM takes the first GPU that its process sees: set it to cuda, "
            "and choose the card by the environment, as in CUDA_VISIBLE_DEVICES=1"
        )
    if device != "cpu" and talker.options.get("dtype") == "float32":
        raise BadSettings(
            f"talker.options.dtype is float32, and model_runner {runner} on a GPU computes attention in 16 bits only: "
            "set it to bfloat16, or model_runner to torch"
        )
    if device != "cpu" and not (talker.exclusive_prefill or talker.batch_invariant):
        raise BadSettings(
            "talker.exclusive_prefill is false, and on a GPU a job computed beside others' prompts has other bits than "
            "alone: set it to true, or talker.batch_invariant to true"
        )
    if talker.prefill_graphs and not talker.exclusive_prefill:
        raise BadSettings(
            "talker.prefill_graphs needs steps that prefill alone: set talker.exclusive_prefill to true, or "
            "talker.prefill_graphs to false"
        )


def _check_steps(talker: TalkerSettings, family: Family) -> None:
    budget, needed = talker.max_num_batched_tokens, step_tokens(talker, family)
    if budget is not None and budget < needed:
        raise BadSettings(
            f"talker.max_num_batched_tokens is {budget}, and a step needs {needed}: {talker.max_jobs} jobs of "
            f"{family.rows} rows, and the chunks of {talker.prefill_chunk} tokens of a job that is prefilled; set it "
            f"to {needed} or more, or lower talker.max_jobs or talker.prefill_chunk"
        )


def step_tokens(talker: TalkerSettings, family: Family) -> int:
    """The fewest tokens that a step's budget may have: a decode of every row, and a chunk for each row of one job."""
    decode, prefill = family.rows * talker.max_jobs, family.rows * talker.prefill_chunk
    return max(decode, prefill) if talker.exclusive_prefill else decode + prefill
