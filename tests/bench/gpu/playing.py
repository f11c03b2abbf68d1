"""Plays scenarios on a runner, and notes what came out, draw by draw and frame by frame."""

from __future__ import annotations

import hashlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from broker_schemas.events import JobRequested
from tests.bench.gpu.songs import Scenario, Song, Visit
from workers.run import LoadedTalker
from workers.talker.frames import FrameHistory


def _mark(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array)).hexdigest()[:8]


@dataclass(slots=True)
class Playing:
    """A visit that is going on. `rows`: the conditioning of its frames from `sent` on, a digest each."""

    visit: Visit
    history: FrameHistory
    rows: list[str] = field(default_factory=list)
    conditioning: Any = field(default_factory=hashlib.sha256)
    began: int = 0

    def hear(self) -> None:
        """Take the conditioning that has come, as the acoustic stage would."""
        if self.history.waiting:
            for row in self.history.take_conditioning(len(self.history.waiting)):
                self.rows.append(_mark(row))
                self.conditioning.update(row)

    def outcome(self, steps: int) -> dict[str, Any]:
        codes = np.stack(self.history.codes) if self.history.codes else np.empty((0, 0), np.int16)
        return {
            "song": self.visit.song.name,
            "codes_sha256": hashlib.sha256(np.ascontiguousarray(codes, dtype="<i2")).hexdigest(),
            "conditioning_sha256": self.conditioning.hexdigest(),
            "codes": [_mark(row) for row in codes],
            "rows": self.rows,
            "frames": self.history.frames,
            "reason": self.history.reason,
            "steps": steps - self.began,
        }


class Stage:
    """A loaded talker and the songs on it. `codes` of whole songs are kept, to be given back after a takeover."""

    def __init__(self, talker: LoadedTalker, request: Callable[[Song], JobRequested]) -> None:
        self.talker = talker
        self._request = request
        self._codes: dict[str, np.ndarray] = {}

    def prompts(self, visit: Visit) -> list[list[int]]:
        return self.talker.model.prompts(self._request(visit.song))

    def play(self, scenario: Scenario) -> dict[str, Any]:
        """Play to the end.

        Returns:
            `songs` (an outcome for each visit that stayed, in order of their ends), `steps`, `wall_s`, `preemptions`,
            and `blocks` where the scenario has a part of the memory only.
        """
        if scenario.memory is None:
            return self._play(scenario)
        with self._only(self._blocks(scenario)) as blocks:
            return {**self._play(scenario), "blocks": blocks}

    def _blocks(self, scenario: Scenario) -> int:
        """As many as the scenario has, but at least what its longest song takes."""
        size, rows = self.talker.runner.profile()["block_size"], self.talker.model.rows
        needs = [
            rows * math.ceil((len(self.prompts(visit)[0]) + visit.song.frames + 2) / size) for visit in scenario.visits
        ]
        return max(int(scenario.memory * sum(needs)), max(needs) + rows)

    @contextmanager
    def _only(self, blocks: int) -> Iterator[int]:
        """The engine has that many blocks for as long as the block runs: the others are taken, by nobody."""
        pool = self.talker.runner._core.scheduler.kv_cache_manager.block_pool
        taken = pool.get_new_blocks(pool.get_num_free_blocks() - blocks)
        try:
            yield blocks
        finally:
            pool.free_blocks(taken)

    def _play(self, scenario: Scenario) -> dict[str, Any]:
        runner, waiting, playing = self.talker.runner, deque(enumerate(scenario.visits)), {}
        outcomes, step, began = [], 0, time.perf_counter()
        preempted = getattr(runner, "preemptions", 0)
        while waiting or playing:
            if not playing:
                step = max(step, waiting[0][1].arrives)
            while waiting and runner.free_jobs and waiting[0][1].arrives <= step:
                number, visit = waiting.popleft()
                job = f"{scenario.name}/{number}"
                playing[job] = self._admit(job, visit, step)
            step += 1
            for history in runner.step():
                song = playing[history.job]
                song.hear()
                if history.reason:
                    self._codes.setdefault(song.visit.song.name, np.stack(history.codes or [np.empty(0, np.int16)]))
                    outcomes.append(song.outcome(step))
                leaves = song.visit.leaves
                if history.reason or (leaves is not None and history.frames >= leaves):
                    runner.free(history.job)
                    del playing[history.job]
        return {
            "scenario": scenario.name,
            "songs": outcomes,
            "steps": step,
            "wall_s": time.perf_counter() - began,
            "preemptions": getattr(runner, "preemptions", 0) - preempted,
        }

    def _admit(self, job: str, visit: Visit, step: int) -> Playing:
        request, model = self._request(visit.song), self.talker.model
        forced = self._codes[visit.song.name][: visit.resumed_at] if visit.resumed_at else np.empty((0, 0), np.int16)
        history = FrameHistory(
            job, request, max_frames=model.max_frames(request), lead=model.lead, forced=forced, sent=visit.sent
        )
        self.talker.runner.admit(history, model.prompts(request))
        return Playing(visit, history, began=step)
