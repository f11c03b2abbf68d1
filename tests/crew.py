"""Workers around models that are loaded already, and a runner that stands still when told to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from broker_schemas import keys
from broker_schemas.connection import Broker
from broker_schemas.heartbeat import worker_name
from tests.waiting import PATIENCE_S
from workers.acoustic.worker import AcousticWorker
from workers.models.family import load_family
from workers.owning import Ownership
from workers.run import LoadedAcoustic, LoadedTalker
from workers.settings import Settings
from workers.talker.worker import Runner, TalkerWorker


def talker_worker(broker: Broker, settings: Settings, loaded: LoadedTalker) -> TalkerWorker:
    own = _ownership(broker, keys.TALKER, loaded.profile, settings)
    return TalkerWorker(own, loaded.runner, loaded.model, load_family(settings.family), settings.talker)


def acoustic_worker(broker: Broker, settings: Settings, loaded: LoadedAcoustic) -> AcousticWorker:
    own = _ownership(broker, keys.ACOUSTIC, loaded.profile, settings)
    return AcousticWorker(own, loaded.model, load_family(settings.family), settings.acoustic)


def _ownership(broker: Broker, role: str, profile: str, settings: Settings) -> Ownership:
    return Ownership(
        broker.client(), role=role, model=settings.model, worker=worker_name(role), profile=profile,
        settings=settings.leases,
    )  # fmt: skip


@contextmanager
def holding(runner: Runner, condition: Callable[[], bool]) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Holds the first step before which the condition is met: (it stands still, let it go on)."""
    held, let_go = threading.Event(), threading.Event()
    step = runner.step

    def held_once():
        if not held.is_set() and condition():
            held.set()
            assert let_go.wait(PATIENCE_S)
        return step()

    runner.step = held_once
    try:
        yield held, let_go
    finally:
        let_go.set()
        del runner.step
