"""Recordings become references beside the main loop, whose steps do not wait for an encoder."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor

import redis
import torch

from broker_schemas.events import JobRequested
from broker_schemas.recordings import read_recording
from broker_schemas.voices import read_sound
from workers.models.family import Reference, ReferenceModel
from workers.talker.artefacts import Artefacts

logger = logging.getLogger(__name__)


def recording_of(request: JobRequested) -> str:
    """sha256 of the recording whose voice is to be cloned; "" for none."""
    return request.params.get("ref_audio", "")


class References:
    """Encodes recordings one at a time; what one became is shared with all workers of the same profile.

    Args:
        profile: the talker's, since an artefact's bits are its.
        threads: torch threads of the encoder.
    """

    def __init__(self, client: redis.Redis, model: ReferenceModel, *, profile: str, threads: int) -> None:
        self._client = client
        self._model = model
        self._artefacts = Artefacts(client)
        self._profile = profile
        self._threads = threads
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reference")

    def begin(self, request: JobRequested) -> Future[Reference]:
        """The reference to be. Its errors: LookupError, the recording is gone; BadRecording; those of the broker."""
        return self._thread.submit(self._encoded, request)

    def close(self) -> None:
        """Begin nothing more; what is being encoded is not waited for."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _encoded(self, request: JobRequested) -> Reference:
        recording, with_codes = recording_of(request), self._model.wants_codes(request)
        name = f"{self._profile}:{recording}:{'codes' if with_codes else 'speaker'}"
        if (kept := self._artefacts.get(name)) is not None:
            return kept
        torch.set_num_threads(self._threads)  # it is set for each thread anew
        pcm, rate = read_recording(read_sound(self._client, recording))
        reference = self._model.encode(pcm, rate, with_codes)
        self._artefacts.put(name, reference)
        return reference
