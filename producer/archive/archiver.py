"""Archives final jobs, in a process of its own or a thread: nothing that serves waits for it.

Which jobs no archive has is in the broker from the moment that they retire (`keys.UNARCHIVED`) until they are archived
or their keys go. An archiver claims some for a while, and renews its claims; if it dies they lapse, and another, or it
itself when it is back, makes the next attempt. Two that have one job write the same.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

import redis

from broker_schemas import keys, log
from broker_schemas.codec import DecodeError
from broker_schemas.heartbeat import Heartbeat, broker_ms, worker_name
from broker_schemas.job import BrokenLog
from producer.archive.ended import BrokenSound, Gone, NotOver
from producer.archive.keeping import keep
from producer.archive.settings import ArchiveSettings
from producer.archive.store import Store

_log = logging.getLogger(__name__)
_QUEUED_AT_ONCE = 1000


@dataclass(slots=True)
class _Claim:
    """A job in hand.

    `until`: when the claim lapses (ms); `renewed` and `began` by the monotonic clock. `left`: the store has held the
    call for so long that others may try.
    """

    job: str
    until: int
    keeping: Future[bool]
    began: float
    renewed: float
    left: bool = False


@dataclass(slots=True)
class Tally:
    """Jobs that were archived, and that were there already; and attempts that failed."""

    written: int = 0
    there: int = 0
    failed: int = 0


class Archiver:
    """Jobs of one broker into one store. `tally`: what became of the jobs that it had in hand.

    `on_stuck` is called when it can do nothing more until it is started anew, and at every turn from then on.
    """

    def __init__(
        self,
        client: Any,
        store: Store,
        settings: ArchiveSettings | None = None,
        *,
        name: str | None = None,
        on_stuck: Callable[[], None] = lambda: None,
    ) -> None:
        self.client = client
        self.store = store
        self.settings = settings or ArchiveSettings()
        self.name = name or worker_name(keys.ARCHIVE)
        self.tally = Tally()
        self._on_stuck = on_stuck
        self._run = log.Scripts(client)
        self._claims: list[_Claim] = []
        self._pause_s = 0.0  # the last one; 0 while the store takes what it is given
        self._not_before = 0.0
        self._beaten = 0.0

    def run(self, stop: threading.Event) -> None:
        """Archive until `stop`; what is in hand then is finished. A broker or store that is away is waited for.

        The heartbeat comes from this loop, which waits for no store: where the loop stops, so does it.
        """
        while not stop.is_set():
            try:
                self.turn()
                self._beat()
            except redis.RedisError as error:
                _log.warning("the broker is away: %s", error)
                stop.wait(self.settings.look_every_s)
            if self.stuck:
                self._on_stuck()
            self._wait(stop)
        self._finish()
        self._leave()

    def catch_up(self) -> Tally:
        """Archive every final job whose keys are there, though it may have been, or until the store fails."""
        members = [member.decode() for member in self.client.zrange(keys.EXPIRING, 0, -1)]
        jobs = [member.rsplit("/", 1)[1] for member in members]
        for first in range(0, len(jobs), _QUEUED_AT_ONCE):
            self._run(log.archive_again(jobs[first : first + _QUEUED_AT_ONCE]))
        while self.turn() or self._in_hand():
            wait([claim.keeping for claim in self._claims], self.settings.look_every_s, FIRST_COMPLETED)
        return self.tally

    @property
    def stuck(self) -> bool:
        """Whether the store holds as many calls as there may be at once, all for longer than `patience_s`."""
        return len(self._claims) >= self.settings.at_once and not self._in_hand()

    def waiting(self) -> int:
        """Jobs that no archive has: in the hands of some archiver, or put off."""
        return self.client.zcard(keys.UNARCHIVED)

    def turn(self) -> bool:
        """See what became of the jobs in hand, and take more. Whether there were any. Raises RedisError."""
        self._tend()
        return self._claim()

    def _in_hand(self) -> list[_Claim]:
        return [claim for claim in self._claims if not claim.left]

    def _tend(self) -> None:
        for claim in sorted(self._claims, key=lambda claim: not claim.keeping.done()):
            if claim.keeping.done():
                self._claims.remove(claim)  # if the broker is away now, it lapses
                self._settle(claim)
            else:
                self._renew(claim)

    def _claim(self) -> bool:
        room = self.settings.at_once - len(self._claims)
        if room <= 0 or time.monotonic() < self._not_before:
            return False
        ttl_ms = int(self.settings.claim_s * 1000)
        until, *jobs = self._run(log.claim_unarchived(ttl_ms=ttl_ms, most=room))
        for job in jobs:
            now = time.monotonic()
            self._claims.append(_Claim(job, until, self._begin(job), began=now, renewed=now))
        return bool(jobs)

    def _begin(self, job: str) -> Future[bool]:
        """Keep it, in a daemon of its own: a store that holds a call for ever cannot hold the process that ends."""
        keeping: Future[bool] = Future()
        threading.Thread(target=self._keep, args=(job, keeping), name=f"archive {job}", daemon=True).start()
        return keeping

    def _keep(self, job: str, keeping: Future[bool]) -> None:
        try:
            keeping.set_result(keep(self.client, self.store, job, self.settings.format))
        except BaseException as error:
            keeping.set_exception(error)

    def _renew(self, claim: _Claim) -> None:
        """A store that holds a call for ever does not hold the job for ever: another may try."""
        now = time.monotonic()
        if claim.left or now - claim.renewed < self.settings.claim_s / 3:
            return
        if now - claim.began > self.settings.patience_s:
            _log.error("job %s is left to others: the store has not answered for %g s", claim.job, now - claim.began)
            claim.left = True
            self.tally.failed += 1
        [until] = self._put_off(claim, self.settings.claim_s, failed=claim.left)
        claim.until, claim.renewed = until or claim.until, now

    def _settle(self, claim: _Claim) -> None:
        try:
            written = claim.keeping.result()
        except Gone:
            _log.error("job %s is gone, and was not archived", claim.job)
            written = False
        except (NotOver, BrokenLog, DecodeError, BrokenSound) as error:
            _log.error("job %s is not archived: %s", claim.job, error)
            self.tally.failed += 1
            self._put_off(claim, self.settings.unreadable_s, failed=True)
            return
        except Exception as error:  # the libraries of stores raise what they like
            self._pause_s = min(max(2 * self._pause_s, self.settings.first_pause_s), self.settings.longest_pause_s)
            self._not_before = time.monotonic() + self._pause_s
            _log.warning(
                "job %s is not archived yet, next try in %g s: %s: %s",
                claim.job, self._pause_s, type(error).__name__, error,
            )  # fmt: skip
            self.tally.failed += 1
            self._put_off(claim, self._pause_s, failed=True)
            return
        else:
            self._pause_s = 0.0
            self.tally.written += written
            self.tally.there += not written
        self._run(log.end_archiving(claim.job, claimed=claim.until, archived=written))

    def _put_off(self, claim: _Claim, pause_s: float, *, failed: bool = False) -> list[Any]:
        pause_ms = int(pause_s * 1000)
        return self._run(log.put_off_archiving(claim.job, claimed=claim.until, pause_ms=pause_ms, failed=failed))

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._beaten < self.settings.look_every_s:
            return
        beat = Heartbeat(
            worker=self.name,
            role=keys.ARCHIVE,
            model="",
            profile="",
            at=broker_ms(self.client.time()),
            slots=self.settings.at_once,
            held=len(self._claims),
            oldest_s=max((now - claim.began for claim in self._claims), default=0.0),
            stuck=self.stuck,
            counts={"archived": self.tally.written, "there": self.tally.there, "failed": self.tally.failed},
        )
        self.client.hset(keys.WORKERS, self.name, beat.pack())
        self._beaten = now

    def _wait(self, stop: threading.Event) -> None:
        """Until something is done, or it is time to look again."""
        if self._claims:
            wait([claim.keeping for claim in self._claims], self.settings.look_every_s, FIRST_COMPLETED)
        else:
            stop.wait(self.settings.look_every_s)

    def _finish(self) -> None:
        """No claim is left to lapse, but those that are left to others already: their calls may never end."""
        while in_hand := self._in_hand():
            wait([claim.keeping for claim in in_hand], self.settings.look_every_s, FIRST_COMPLETED)
            try:
                self._tend()
                self._beat()
            except redis.RedisError as error:
                _log.warning("the broker is away, and claims may be left to lapse: %s", error)

    def _leave(self) -> None:
        """Nobody counts on this archiver any more."""
        try:
            self.client.hdel(keys.WORKERS, self.name)
        except redis.RedisError:
            _log.warning("the broker is away: this archiver's heartbeat will run out by itself")
