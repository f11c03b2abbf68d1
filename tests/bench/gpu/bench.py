"""One run of the bench: children with time limits, and results that are on disk as soon as they are known."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.gpu.plans import Plan
from tests.bench.gpu.report import write
from workers.settings import merge


class NotRun(Exception):
    """A measurement gave no result, or not all of it; `str()` says why, `rows` are those that it gave."""

    def __init__(self, why: str, rows: list[dict[str, Any]] | None = None) -> None:
        super().__init__(why)
        self.rows = rows or []


@dataclass
class Bench:
    """`overrides`: what every configuration has. `deadline`: on the clock of `time.monotonic`; no child outlives it."""

    out: Path
    checkpoint: Path
    family: str
    config: str
    platform: str  # cpu | cuda
    plan: Plan
    runners: list[str]
    overrides: dict[str, Any]
    about: dict[str, Any]
    limit_s: float
    deadline: float
    failed: list[str] = field(default_factory=list)
    _children: int = 0

    @property
    def on_cuda(self) -> bool:
        return self.platform == "cuda"

    def tree(self, runner: str, extra: Mapping[str, Any] = {}) -> dict[str, Any]:
        """The deploy file's overrides for a runner."""
        return merge(merge(self.overrides, {"talker": {"model_runner": runner}}), extra)

    def child(self, work: str, overrides: Mapping[str, Any], **arguments: Any) -> list[dict[str, Any]]:
        """The rows of one measurement, in a process of its own. Raises NotRun."""
        left = min(self.limit_s, self.deadline - time.monotonic())
        if left < 1:
            raise NotRun("out of time: give this section a run of its own, or more --budget")
        self._children += 1
        stem = self.out / "children" / f"{time.strftime('%H%M%S')}-{self._children}-{work}"
        stem.parent.mkdir(parents=True, exist_ok=True)
        task, rows, log = (stem.with_suffix(suffix) for suffix in (".json", ".jsonl", ".log"))
        task.write_text(
            json.dumps(
                {
                    "work": work, "config": self.config, "checkpoint": str(self.checkpoint), "platform": self.platform,
                    "overrides": overrides, "arguments": arguments,
                }
            )
        )  # fmt: skip
        command = [sys.executable, "-m", "tests.bench.gpu.work", str(task), str(rows)]
        why = ""
        with log.open("w") as output:
            try:
                code = subprocess.run(command, stdout=output, stderr=output, timeout=left).returncode
                why = f"ended with code {code}: {_last_words(log)}" if code else ""
            except subprocess.TimeoutExpired:
                why = f"not done within {left:.0f} s"
        known = [json.loads(row) for row in rows.read_text().splitlines()] if rows.exists() else []
        if why:
            raise NotRun(f"{why} ({log})", known)
        return known

    def kept(
        self, section: str, name: str, notes: list[str], work: str, overrides: Mapping[str, Any], **arguments: Any
    ) -> list[dict[str, Any]]:
        """The rows of one measurement, or those that it gave before it fell, which is then noted."""
        try:
            return self.child(work, overrides, **arguments)
        except NotRun as error:
            notes.append(self.fail(section, name, error))
            return error.rows

    def put(self, section: str, rows: list[dict[str, Any]], notes: list[str] | None = None) -> None:
        """Have a section's table on disk, as far as it is known."""
        path = self.out / f"{section}.json"
        path.write_text(json.dumps({"about": self.about, "rows": rows, "notes": notes or []}, indent=1) + "\n")
        write(self.out)

    def fail(self, section: str, name: str, error: NotRun) -> str:
        """Note what gave no result, and go on."""
        said = f"{section}, {name}: {error}"
        print(said, file=sys.stderr, flush=True)
        self.failed.append(said)
        return said


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no word"
