"""What Prometheus reads of an api process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from broker_schemas import keys
from broker_schemas.codec import DecodeError
from broker_schemas.heartbeat import Heartbeat
from broker_schemas.job import BrokenLog
from producer.follow import Unknown

if TYPE_CHECKING:
    from api.service import Service

_log = logging.getLogger(__name__)
_SECONDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 8, 13, 21, 34, 60, 120, 300)


class WorkerMetrics:
    """What workers and archivers say of themselves, as of `beats`; one that is gone is not told of any more."""

    def __init__(self) -> None:
        self.beats: list[Heartbeat] = []

    def collect(self) -> Iterator[Metric]:
        labels = ["worker", "role", "model"]
        gauges = {
            "slots": GaugeMetricFamily("songline_worker_slots", "Jobs that the worker can hold", labels=labels),
            "held": GaugeMetricFamily("songline_worker_jobs_held", "Jobs that the worker holds", labels=labels),
            "oldest_s": GaugeMetricFamily(
                "songline_worker_oldest_lease_seconds", "How long it has held the job it took first", labels=labels
            ),
            "draining": GaugeMetricFamily("songline_worker_draining", "1 where it takes no more jobs", labels=labels),
            "stuck": GaugeMetricFamily(
                "songline_worker_stuck", "1 where nothing that it holds goes on until it is started anew", labels=labels
            ),
        }
        done = CounterMetricFamily(
            "songline_worker_done", "What the worker did since its start, by what", labels=[*labels, "what"]
        )
        for beat in self.beats:
            named = [beat.worker, beat.role, beat.model]
            for name, family in gauges.items():
                family.add_metric(named, float(getattr(beat, name)))
            for what, number in beat.counts.items():
                done.add_metric([*named, what], number)
        yield from gauges.values()
        yield done


class Metrics:
    """Counters of this process; queue depth, live jobs and workers are the whole installation's."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.submissions = self._counter("submissions", "Jobs accepted", "model", "route")
        self.refusals = self._counter("refusals", "Requests refused before they became jobs", "field", "code")
        self.jobs = self._counter("jobs", "Jobs accepted here that are final", "model", "status")
        self.loops = self._counter("loops", "Jobs accepted here whose model was caught in a loop, and cut off", "model")
        self.webhooks = self._counter(
            "webhooks",
            "Jobs' ends that were told (delivered) or never could be (given_up), and attempts that failed",
            "outcome",
        )
        self.bytes_out = self._counter(
            "stream_bytes", "Bytes of sound sent to clients: of PCM or a file, without the events around it", "kind"
        )
        self.first_audio = Histogram(
            "songline_first_audio_seconds", "From acceptance to the first chunk, by the broker's clock", ["model"],
            registry=self.registry, buckets=_SECONDS,
        )  # fmt: skip
        self.queue_depth = self._gauge("queue_depth", "Jobs that no talker has taken yet", "model")
        self.live_jobs = self._gauge("live_jobs", "Jobs that are not final")
        self.webhooks_waiting = self._gauge(
            "webhooks_waiting",
            "Jobs whose end is yet to be told (owed), those of them tried in vain (retrying)",
            "state",
        )
        self.unarchived_jobs = self._gauge(
            "unarchived_jobs", "Final jobs that are still there, and that no archive has"
        )
        self.unarchived_oldest = self._gauge(
            "unarchived_oldest_seconds", "For how long the first of them has waited to be archived"
        )
        self.subscribers = self._gauge("stream_subscribers", "Open streams of events or sound", "kind")
        self.workers = WorkerMetrics()
        self.registry.register(self.workers)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"songline_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"songline_{name}", text, labels, registry=self.registry)

    def text(self) -> bytes:
        return generate_latest(self.registry)


async def count_final_jobs(service: Service) -> None:
    """Count the jobs that this process accepted and that have become final since.

    One read of the live set tells which ones are, however many there are.
    """
    if not service.accepted:
        return
    candidates = frozenset(service.accepted)  # before the read, so that a job accepted since is not taken for final
    live = {job.decode() for job in await service.client().zrange(keys.LIVE, 0, -1)}
    producer = await service.producer()
    for job in candidates - live:
        try:
            state = await producer.jobs.state(job)
            model = state.requested.model
        except Unknown:  # purged, or expired
            service.accepted.discard(job)
            continue
        except (BrokenLog, DecodeError) as error:
            _log.error("job %s is not counted: %s", job, error)
            service.accepted.discard(job)
            continue
        if not state.status.final:
            continue
        service.accepted.discard(job)
        service.metrics.jobs.labels(model, state.status.value).inc()
        if state.looped:
            service.metrics.loops.labels(model).inc()
        if state.first_chunk_at is not None:
            service.metrics.first_audio.labels(model).observe((state.first_chunk_at - state.requested_at) / 1000)
