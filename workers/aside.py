"""One errand at a time, done beside the main loop: a broker that syncs its disk must not hold up a step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

_Result = TypeVar("_Result")

_LAST_ERRAND_S = 10.0  # how long a worker that leaves waits for it


@dataclass(frozen=True, slots=True)
class _Raised:
    """What an errand ended with that has no result."""

    error: BaseException


class Aside(Generic[_Result]):
    """A thread for errands of the main loop, which alone calls its methods.

    Args:
        wake: called, in the thread, whenever an errand is done.
    """

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._errands: SimpleQueue[Callable[[], _Result] | None] = SimpleQueue()
        self._done: SimpleQueue[_Result | _Raised] = SimpleQueue()
        self._news = threading.Event()
        self._under_way = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def busy(self) -> bool:
        """Whether an errand is under way, or its result was not taken yet."""
        return self._under_way > 0

    def begin(self, errand: Callable[[], _Result]) -> None:
        if self._thread.ident is None:
            self._thread.start()
        self._under_way += 1
        self._news.clear()
        self._errands.put(errand)

    def results(self) -> list[_Result]:
        """Of the errands that are done and were not asked for yet; raises what one of them raised."""
        results: list[_Result] = []
        while self._under_way:
            try:
                outcome = self._done.get_nowait()
            except Empty:
                break
            self._under_way -= 1
            if isinstance(outcome, _Raised):
                raise outcome.error
            results.append(outcome)
        return results

    def wait(self, seconds: float) -> None:
        """Until an errand is done, or the time is out."""
        self._news.wait(seconds)

    def stop(self) -> None:
        """End the thread after the errand that is under way, whose result is of no use any more."""
        self._errands.put(None)
        if self._thread.ident is not None:
            self._thread.join(_LAST_ERRAND_S)

    def _run(self) -> None:
        while (errand := self._errands.get()) is not None:
            try:
                self._done.put(errand())
            except BaseException as error:
                self._done.put(_Raised(error))
            self._news.set()
            self._wake()
