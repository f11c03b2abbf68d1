"""Start a worker: load its half of the model, and run its loop beside a sweeper."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from broker_schemas import keys
from broker_schemas.connection import Broker
from broker_schemas.heartbeat import worker_name
from workers.acoustic.worker import AcousticWorker
from workers.checkpoints import weights_digest
from workers.models.family import AcousticModel, Family, ReferenceModel, TalkerModel, load_family
from workers.owning import Ownership
from workers.profile import computed_with, profile
from workers.runners.torch_runner import TorchRunner
from workers.settings import BadSettings, Settings
from workers.sweep import Sweeper
from workers.talker.references import References
from workers.talker.worker import Runner, TalkerWorker

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedTalker:
    """A talker with its weights in memory, not yet at work."""

    model: TalkerModel
    runner: Runner
    profile: str
    reference: ReferenceModel | None = None


@dataclass(frozen=True, slots=True)
class LoadedAcoustic:
    """An acoustic stage with its weights in memory, not yet at work."""

    model: AcousticModel
    profile: str


def load_talker(settings: Settings) -> LoadedTalker:
    """Raises BadSettings, and the checkpoint loader's errors."""
    family, talker = load_family(settings.family), settings.talker
    torch.set_num_threads(talker.threads)
    load = _load_torch if talker.model_runner == "torch" else _load_vllm
    model, runner = load(family, settings)
    weights = weights_digest(settings.checkpoint, family.talker_components)
    options = computed_with(talker.options)
    facts = {"family": family.name, "weights": weights, "runner": runner.profile(), "options": options}
    reference = family.reference(settings.checkpoint, talker.options)
    return LoadedTalker(model, runner, profile(keys.TALKER, **facts), reference)


def _load_torch(family: Family, settings: Settings) -> tuple[TalkerModel, Runner]:
    talker = settings.talker
    try:
        model = family.talker(settings.checkpoint, {"max_jobs": talker.max_jobs, **talker.options}, None)
    except ValueError as error:
        raise BadSettings(str(error)) from error
    runner = TorchRunner(
        model, max_jobs=talker.max_jobs, max_model_len=min(talker.max_model_len, model.context),
        prefill_chunk=talker.prefill_chunk,
    )  # fmt: skip
    return model, runner


def _load_vllm(family: Family, settings: Settings) -> tuple[TalkerModel, Runner]:
    from workers.runners.vllm_runner import VllmRunner

    if find_spec("vllm") is None:
        asked = settings.talker.model_runner
        raise BadSettings(
            f"talker.model_runner {asked} needs vLLM, which is not installed: pip install 'songline[vllm]' on a GPU "
            "(docs/vllm.md for the CPU), or set talker.model_runner to torch"
        )
    runner = VllmRunner(family, settings.checkpoint, settings.talker)
    return runner.model, runner


def load_acoustic(settings: Settings) -> LoadedAcoustic:
    """Raises the checkpoint loader's errors."""
    family, options = load_family(settings.family), settings.acoustic.options
    torch.set_num_threads(settings.acoustic.threads)
    model = family.acoustic(settings.checkpoint, options)
    weights = weights_digest(settings.checkpoint, family.acoustic_components)
    facts = {"family": family.name, "weights": weights, "options": computed_with(options)}
    return LoadedAcoustic(model, profile(keys.ACOUSTIC, **facts))


def run_talker(
    broker: Broker, settings: Settings, stop: threading.Event, *, name: str | None = None,
    loaded: LoadedTalker | None = None,
) -> None:  # fmt: skip
    """Serve as talker until `stop`; raises what ends it before that."""
    loaded = loaded or load_talker(settings)
    torch.set_num_threads(settings.talker.threads)
    own = _ownership(broker, keys.TALKER, settings, loaded.profile, name)
    references = None
    if loaded.reference is not None:
        references = References(
            broker.client(), loaded.reference, profile=loaded.profile, threads=settings.talker.threads
        )  # fmt: skip
    worker = TalkerWorker(
        own, loaded.runner, loaded.model, load_family(settings.family), settings.talker, references
    )  # fmt: skip
    _serve(broker, worker.run, own, settings, stop)


def run_acoustic(
    broker: Broker, settings: Settings, stop: threading.Event, *, name: str | None = None,
    loaded: LoadedAcoustic | None = None,
) -> None:  # fmt: skip
    """Serve as acoustic worker until `stop`; raises what ends it before that."""
    loaded = loaded or load_acoustic(settings)
    torch.set_num_threads(settings.acoustic.threads)
    own = _ownership(broker, keys.ACOUSTIC, settings, loaded.profile, name)
    _serve(
        broker,
        AcousticWorker(own, loaded.model, load_family(settings.family), settings.acoustic).run,
        own,
        settings,
        stop,
    )


def _ownership(broker: Broker, role: str, settings: Settings, profile_digest: str, name: str | None) -> Ownership:
    return Ownership(
        broker.client(), role=role, model=settings.model, worker=name or worker_name(role), profile=profile_digest,
        settings=settings.leases,
    )  # fmt: skip


def _serve(
    broker: Broker, run: Callable[[threading.Event], None], own: Ownership, settings: Settings, stop: threading.Event
) -> None:
    logger.info("%s serves %s, profile %s", own.worker, own.model, own.profile[:12])
    ended = threading.Event()
    sweeper = Sweeper(broker.client(), name=own.worker, settings=settings.leases)
    threading.Thread(target=sweeper.run, args=(ended,), name="sweeper", daemon=True).start()
    try:
        run(stop)
    finally:
        ended.set()
