"""Roles as threads of one process. A thread that dies takes the process down, with its error."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from compose.trouble import Trouble

_log = logging.getLogger("songline")


class RoleThreads:
    """Threads that all run until `stop` is set. `on_death` is called in the thread that died."""

    def __init__(self, stop: threading.Event, on_death: Callable[[], None]) -> None:
        self._stop = stop
        self._on_death = on_death
        self._threads: list[threading.Thread] = []
        self._deaths: list[tuple[str, str]] = []

    def start(self, name: str, run: Callable[[threading.Event], object]) -> None:
        # Daemons, so that a thread stuck in a step cannot hold the process beyond its grace.
        thread = threading.Thread(target=self._guard, args=(name, run), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _guard(self, name: str, run: Callable[[threading.Event], object]) -> None:
        try:
            result = run(self._stop)
            why = f"it returned {result!r} though nobody had stopped it"
        except BaseException as error:  # SystemExit too: whatever ends a role ends the process
            _log.exception("the %s thread died", name)
            why = f"{type(error).__name__}: {error}"
        else:
            if self._stop.is_set():
                return
        self._deaths.append((name, why))
        self._stop.set()
        self._on_death()

    def join(self, grace_s: float) -> None:
        """Wait for all to end. Raises Trouble for the first that died, or for one that did not end in time."""
        self._stop.wait()
        for thread in self._threads:
            thread.join(grace_s)
        if self._deaths:
            name, why = self._deaths[0]
            raise Trouble(f"the {name} thread died: {why}")
        if stuck := [thread.name for thread in self._threads if thread.is_alive()]:
            raise Trouble(f"did not stop within {grace_s:g} s: {', '.join(stuck)}")
