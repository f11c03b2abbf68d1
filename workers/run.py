"""Start a worker: load its half of the model, and run its loop beside a sweeper."""

from __future__ import annotations

import logging
import threading

import torch

from broker_schemas import keys
from broker_schemas.connection import Broker
from workers.acoustic.worker import AcousticWorker
from workers.checkpoints import weights_digest
from workers.models.family import load_family
from workers.owning import Ownership, worker_name
from workers.profile import profile
from workers.runners.torch_runner import TorchRunner
from workers.settings import BadSettings, Settings
from workers.sweep import Sweeper
from workers.talker.worker import TalkerWorker

logger = logging.getLogger(__name__)


def run_talker(broker: Broker, settings: Settings, stop: threading.Event, *, name: str | None = None) -> None:
    """Serve as talker until `stop`; raises what ends it before that."""
    torch.set_num_threads(settings.talker.threads)
    family = load_family(settings.family)
    if settings.talker.model_runner != "torch":
        raise BadSettings(f"talker.model_runner {settings.talker.model_runner!r} is not known here: use torch")
    talker = settings.talker
    model = family.talker(settings.checkpoint, {"max_jobs": talker.max_jobs, **talker.options})
    runner = TorchRunner(
        model, max_jobs=talker.max_jobs, max_model_len=min(talker.max_model_len, model.context),
        prefill_chunk=talker.prefill_chunk,
    )  # fmt: skip
    facts = {
        "family": family.name,
        "weights": weights_digest(settings.checkpoint, family.talker_components),
        "runner": runner.profile(),
        "options": talker.options,
    }
    ownership = _ownership(broker, keys.TALKER, settings, profile(keys.TALKER, **facts), name)
    worker = TalkerWorker(ownership, runner, model, family, talker)
    _serve(broker, worker.run, ownership, settings, stop)


def run_acoustic(broker: Broker, settings: Settings, stop: threading.Event, *, name: str | None = None) -> None:
    """Serve as acoustic worker until `stop`; raises what ends it before that."""
    torch.set_num_threads(settings.acoustic.threads)
    family = load_family(settings.family)
    model = family.acoustic(settings.checkpoint, settings.acoustic.options)
    facts = {
        "family": family.name,
        "weights": weights_digest(settings.checkpoint, family.acoustic_components),
        "options": settings.acoustic.options,
    }
    ownership = _ownership(broker, keys.ACOUSTIC, settings, profile(keys.ACOUSTIC, **facts), name)
    worker = AcousticWorker(ownership, model, family, settings.acoustic)
    _serve(broker, worker.run, ownership, settings, stop)


def _ownership(broker: Broker, role: str, settings: Settings, digest: str, name: str | None) -> Ownership:
    return Ownership(
        broker.client(), role=role, model=settings.model, worker=name or worker_name(role), profile=digest,
        settings=settings.leases,
    )  # fmt: skip


def _serve(broker: Broker, run, ownership: Ownership, settings: Settings, stop: threading.Event) -> None:
    logger.info("%s serves %s, profile %s", ownership.worker, ownership.model, ownership.profile[:12])
    ended = threading.Event()
    sweeper = Sweeper(broker.client(), name=ownership.worker, settings=settings.leases)
    threading.Thread(target=sweeper.run, args=(ended,), name="sweeper", daemon=True).start()
    try:
        run(stop)
    finally:
        ended.set()


