"""Stop on SIGTERM or SIGINT: gracefully at the first signal, at once at the second."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable


class Stop(threading.Event):
    """An event that the first signal sets; `also` is called with it."""

    def __init__(self, also: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.also = also

    def listen(self) -> None:
        """Take the process's signals from here on. Only the main thread may."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: object) -> None:
        if self.is_set():
            os._exit(128 + number)
        print("songline: stopping; a second signal ends at once", file=sys.stderr, flush=True)
        self.set()
        self.also()
