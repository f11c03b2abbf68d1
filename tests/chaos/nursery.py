"""Starts worker processes fast: loads a model once, and forks a worker whenever it is told to.

    python -m tests.chaos.nursery BROKER_URL instant
    python -m tests.chaos.nursery BROKER_URL FAMILY CHECKPOINT_FOLDER MAX_JOBS [MODEL_RUNNER]

Reads `talker` or `acoustic` a line from standard input, and answers with the new process's id.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from broker_schemas.connection import RedisBroker
from tests import stand_ins
from tests.stand_ins import QUICK


def instant(url: str) -> dict[str, Callable[[threading.Event], None]]:
    runner = stand_ins.InstantRunner(step_s=0.002)
    model = stand_ins.InstantAcoustic(window_s=0.1)

    def talk(stop: threading.Event) -> None:
        stand_ins.talker(RedisBroker(url), runner=runner).run(stop)

    def sound(stop: threading.Event) -> None:
        stand_ins.acoustic(RedisBroker(url), model=model).run(stop)

    return {"talker": talk, "acoustic": sound}


def real(
    url: str, family: str, checkpoint: str, max_jobs: str, model_runner: str = "torch"
) -> dict[str, Callable[[threading.Event], None]]:
    from workers import run
    from workers.settings import load

    settings = load(family, Path(checkpoint))
    talking = replace(settings.talker, max_jobs=int(max_jobs), model_runner=model_runner)
    settings = replace(settings, leases=QUICK, talker=talking)
    talker, acoustic = run.load_talker(settings), run.load_acoustic(settings)
    return {
        "talker": lambda stop: run.run_talker(RedisBroker(url), settings, stop, loaded=talker),
        "acoustic": lambda stop: run.run_acoustic(RedisBroker(url), settings, stop, loaded=acoustic),
    }


def child(work: Callable[[threading.Event], None], sweeper_url: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    sweeper = stand_ins.sweeper(RedisBroker(sweeper_url))
    threading.Thread(target=sweeper.run, args=(stop,), daemon=True).start()
    code = 1
    try:
        work(stop)
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    url, model, *how = sys.argv[1:]
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # engines talk too
    roles = instant(url) if model == "instant" else real(url, model, *how)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped as they fall
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            child(roles[line.strip()], url)
        print(pid, file=answers, flush=True)


if __name__ == "__main__":
    main()
