"""What recordings became, kept in the broker for all workers: the least recently used make room."""

from __future__ import annotations

from typing import Any

import redis

from broker_schemas import keys, log
from broker_schemas.codec import Tensor, pack, unpack
from workers.models.family import Reference


class Artefacts:
    """A cache by name; a name says all that its artefact depends on.

    Args:
        max_count, max_bytes: kept at most.
    """

    def __init__(self, client: redis.Redis, *, max_count: int = 1024, max_bytes: int = 512 << 20) -> None:
        self._client = client
        self._limits = {"max_bytes": max_bytes, "max_count": max_count}
        self._run = log.Scripts(client)

    def get(self, name: str) -> Reference | None:
        """Raises redis.RedisError."""
        kept: Any = self._client.get(keys.artefact(name))
        if kept is None:
            return None
        self._run(log.use_artefact(name, **self._limits))
        values = unpack(kept)
        codes = values["codes"]
        return Reference(values["speaker"].numpy(), None if codes is None else codes.numpy())

    def put(self, name: str, reference: Reference) -> None:
        """Raises redis.RedisError."""
        codes = None if reference.codes is None else Tensor.of(reference.codes)
        content = pack({"speaker": Tensor.of(reference.speaker), "codes": codes})
        self._run(log.use_artefact(name, content, **self._limits))
