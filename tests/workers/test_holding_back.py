"""Which listeners an acoustic worker holds a window back for: those whose own window is still to come."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from tests.stand_ins import QUICK, RAMP, SPEECH, InstantAcoustic, ownership
from workers.acoustic.carry import Carry
from workers.acoustic.worker import AcousticWorker, Sounding
from workers.settings import AcousticSettings

MODEL = InstantAcoustic(width=0, keeps_state=False, own=None, channels=1)
LONG_S = 1000.0  # nothing here lasts so long


@pytest.fixture
def worker(real_broker):
    own = ownership(real_broker, "acoustic", settings=QUICK)
    return AcousticWorker(own, MODEL, SPEECH, AcousticSettings(hold_s=LONG_S))


def sounding(job: str, *, spans: int, chunks: int, heard_s: float, terminal: bool = False) -> Sounding:
    """A job of so many spans and chunks, whose listener has so much sound left."""
    state = SimpleNamespace(spans=spans, terminal=terminal, frames=RAMP.sent_with(spans), reference=None)
    owned = SimpleNamespace(job=job, state=state, lease=SimpleNamespace(over=None))
    now = time.time()
    carry = Carry(chunks, round(heard_s * MODEL.sample_rate))
    return Sounding(owned, RAMP, carry, None, since=now, heard_from=now, decoded=chunks, state={})


def chosen(worker: AcousticWorker, *jobs: Sounding) -> tuple[list[str], bool]:
    """Whose window is decoded now, and whether the worker waits."""
    worker._sounding = {each.job: each for each in jobs}
    soundings, wait = worker._next()
    return [each.job for each in soundings], wait > 0


def test_a_full_buffer_waits_for_who_has_begun_and_whose_window_is_to_come(worker):
    full = sounding("full", spans=5, chunks=4, heard_s=9 * LONG_S)
    assert chosen(worker, full, sounding("new", spans=1, chunks=1, heard_s=LONG_S / 2)) == ([], True)
    assert chosen(worker, full, sounding("new", spans=2, chunks=1, heard_s=LONG_S / 2)) == (["new"], False)


def test_nobody_waits_for_who_has_nothing_to_come_or_enough(worker):
    full = sounding("full", spans=5, chunks=4, heard_s=9 * LONG_S)
    for other in (
        sounding("done", spans=1, chunks=1, heard_s=LONG_S / 2, terminal=True),
        sounding("rich", spans=1, chunks=1, heard_s=2 * LONG_S),
        sounding("dry", spans=1, chunks=1, heard_s=-1.0),
    ):
        assert chosen(worker, full, other) == (["full"], False), other.job
