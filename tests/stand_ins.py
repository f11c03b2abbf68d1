"""An instant model: stands in for real ones where only the pipeline is under test.

Its codes and sound are hashes of (seed, draw) and of the frames, so that any slip of order, of batch or of seed shows
in the bytes.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from broker_schemas.events import JobRequested
from broker_schemas.heartbeat import worker_name
from tests.waiting import PATIENCE_S
from workers.acoustic.worker import AcousticWorker
from workers.models.family import Decoded, Dropped, Family, Reference, Window
from workers.owning import Ownership
from workers.publish import Entry, Publisher
from workers.settings import AcousticSettings, LeaseSettings, TalkerSettings
from workers.sweep import Sweeper
from workers.talker.frames import FrameHistory
from workers.talker.references import References
from workers.talker.rows import RowSlots
from workers.talker.windows import RampPlan, WindowPlan
from workers.talker.worker import TalkerWorker

PLAN = WindowPlan(200, 100)
WIDTH = 8
CODEBOOKS = 8
RATE = 320  # samples a frame
ENDLESS = 1_000_000_000  # frames of a song whose end no test waits for, however fast the machine
QUICK = LeaseSettings(ttl_s=1.0, stall_s=120.0, max_strikes=3, orphan_s=5.0, sweep_s=0.1)

FAMILY = Family(
    name="instant", plan=lambda request: PLAN, longest_span=PLAN.longest_span, codebooks=lambda folder: CODEBOOKS,
    rows=2, talker_components=(), acoustic_components=(), sizes=(), contract=None, backbone=None, talker=None,
    acoustic=None, make_checkpoint=None,
)  # fmt: skip
# As a speech model is: windows that do not overlap, and an acoustic stage that takes codes and keeps no state.
RAMP = RampPlan((1, 2, 4, 8, 16), 25)
SPEECH = replace(FAMILY, plan=lambda request: RAMP, longest_span=RAMP.longest_span)


def _noise(*parts: object, count: int) -> np.ndarray:
    raw = hashlib.shake_128(repr(parts).encode()).digest(2 * count)
    return np.frombuffer(raw, dtype="<u2")


def _ends_at(history: FrameHistory) -> int:
    ends = history.request.params.get("ends_at", 1 << 60)
    return ends[int(history.job.partition(".")[2] or 0)] if isinstance(ends, list) else ends


class InstantTalker:
    """Ends a song by itself when `params["ends_at"]` draws are made, as a model would; a list has them by passage."""

    rows, codebooks, context = 2, CODEBOOKS, 10_240

    def __init__(self, lead: int = 1) -> None:
        self.lead = lead

    def prompts(
        self, request: JobRequested, reference: Reference | None = None, context: np.ndarray | None = None
    ) -> list[list[int]]:
        return [[1, 2, 3], [1, 0, 3]]

    def max_frames(self, request: JobRequested) -> int:
        return request.params["max_new_tokens"]


@dataclass
class InstantRunner:
    max_jobs: int = 16
    width: int = WIDTH
    step_s: float = 0.0
    steps: int = 0
    before_step: Callable[[], None] = lambda: None
    _jobs: dict[str, FrameHistory] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._slots = RowSlots(self.max_jobs, rows=2)

    @property
    def free_jobs(self) -> int:
        return self._slots.free

    @property
    def idle(self) -> bool:
        return not self._jobs

    def admit(self, history: FrameHistory, prompts: list[list[int]]) -> None:
        self._slots.bind(history)
        self._jobs[history.job] = history

    def free(self, job: str) -> int:
        self._jobs.pop(job, None)
        return self._slots.release(job)

    def profile(self) -> dict:
        return {}

    def step(self) -> list[FrameHistory]:
        self.before_step()
        if self.step_s:
            time.sleep(self.step_s)
        self.steps += 1
        for history in self._jobs.values():
            if history.draw >= _ends_at(history) and history.next_forced is None:
                history.stop()
                continue
            voice = history.reference.speaker.tobytes() if history.reference else b""
            if history.context is not None:  # as a model hears what it goes on from
                voice += history.request.input.encode() + history.context.tobytes()
            drawn = _noise("codes", history.request.seed, history.draw, voice, count=CODEBOOKS).astype(np.int16) % 1024
            forced = history.next_forced
            codes = drawn if forced is None else np.asarray(forced)
            frame = _noise("frame", history.request.seed, codes.tolist(), count=self.width).astype("<f4")
            history.add(codes, frame if history.wants_conditioning else None)
        return list(self._jobs.values())


@dataclass
class InstantReferences:
    """Encodes recordings once `may` is set."""

    encoded: int = 0
    may: threading.Event = field(default_factory=threading.Event)

    def wants_codes(self, request: JobRequested) -> bool:
        return True

    def encode(self, pcm: np.ndarray, rate: int, with_codes: bool) -> Reference:
        assert self.may.wait(PATIENCE_S)
        self.encoded += 1
        codes = _noise("reference", pcm[:100].tobytes(), count=3 * CODEBOOKS).astype(np.int16) % 1024
        return Reference(pcm[:16].copy(), codes.reshape(3, CODEBOOKS))


@dataclass
class InstantAcoustic:
    sample_rate: int = RATE * 25
    channels: int = 2
    width: int = WIDTH
    keeps_state: bool = True
    own: int | None = PLAN.hop  # frames of a window that its successor does not decode; None: all
    batch: int = 1
    window_s: float = 0.0
    solver_steps: int = 4
    after_window: Callable[[int], None] = lambda index: None
    batches: list[int] = field(default_factory=list)  # how many windows each call had

    def shape(self, frames: int, *, last: bool) -> tuple[int, ...]:
        return (frames,)

    def windows(self, asked: Sequence[Window]) -> list[Decoded | None]:
        self.batches.append(len(asked))
        decoded = []
        for window in asked:
            try:
                decoded.append(self.decode(window))
            except Dropped:
                decoded.append(None)
        return decoded

    def decode(self, window: Window) -> Decoded:
        for _ in range(self.solver_steps):
            window.check()
            time.sleep(self.window_s / self.solver_steps)
        before = window.state.get("chain", np.zeros(1, np.uint8))
        if window.reference is not None:
            before = window.reference
        frames = window.frames if window.last else window.frames[: self.own]
        chain = hashlib.sha256(window.frames.tobytes() + before.tobytes()).digest()
        sound = _noise("sound", window.seed, chain, count=2 * RATE * len(frames)).astype("<i2").reshape(-1, 2)
        self.after_window(window.index)
        return Decoded(sound, {"chain": np.frombuffer(chain, np.uint8)})


def request(seed: int = 1, frames: int = 430, **changes: Any) -> JobRequested:
    params = {"max_new_tokens": frames, "async_chunk": True} | changes.pop("params", {})
    values = {
        "model": "instant", "input": "la", "params": params, "seed": seed, "owner": "anonymous",
        "deadline": int(time.time() * 1000) + 600_000, "ttl_ms": 60_000,
    }  # fmt: skip
    return JobRequested(**(values | changes))


def ownership(broker, role: str, *, settings: LeaseSettings = QUICK, profile: str = "p", name: str = "") -> Ownership:
    return Ownership(
        broker.client(),
        role=role,
        model="instant",
        worker=name or worker_name(role),
        profile=profile,
        settings=settings,
    )


def talker(
    broker, *, runner: InstantRunner | None = None, family: Family = FAMILY, settings: LeaseSettings = QUICK,
    references: InstantReferences | None = None, **kwargs: Any,
) -> TalkerWorker:  # fmt: skip
    options = {"ready_limit": kwargs.pop("ready_limit", 1000)}
    own = ownership(broker, "talker", settings=settings, **kwargs)
    speech = family.plan is SPEECH.plan
    runner = runner or InstantRunner(width=0 if speech else WIDTH)
    model = InstantTalker(lead=0 if speech else 1)
    encoder = References(broker.client(), references, profile=own.profile, threads=1) if references else None
    return TalkerWorker(own, runner, model, family, TalkerSettings(**options), encoder)


def acoustic(
    broker, *, model: InstantAcoustic | None = None, family: Family = FAMILY, settings: LeaseSettings = QUICK,
    **kwargs: Any,
) -> AcousticWorker:  # fmt: skip
    own = ownership(broker, "acoustic", settings=settings, **kwargs)
    return AcousticWorker(own, model or InstantAcoustic(), family, AcousticSettings())


@contextmanager
def running(*workers):
    """Workers in threads, stopped at the end; an exception in one is raised here."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def run(worker) -> None:
        try:
            worker.run(stop)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        yield stop
    finally:
        stop.set()
        for worker in workers:
            worker._ownership.signals.stop()  # an idle one looks up at once
        for thread in threads:
            thread.join(timeout=PATIENCE_S)
    if errors:
        raise errors[0]


def each_append(publisher: Publisher, around: Callable[[Entry, Callable[[], None]], None]) -> None:
    """Have the publisher write its events one by one, each through `around`: it gets the entry, and what writes it."""
    append = publisher._append

    def one_by_one(due: list[Entry], logged: list[Entry]) -> None:
        while due:
            around(due[0], partial(append, [due[0]], logged))
            due.pop(0)

    publisher._append = one_by_one


def sweeper(broker, settings: LeaseSettings = QUICK) -> Sweeper:
    return Sweeper(broker.client(), name="sweeper", settings=settings)
