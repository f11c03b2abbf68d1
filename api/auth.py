"""Who is asking: the owner that an API key stands for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from api.errors import ApiError
from broker_schemas import keys

ANONYMOUS = "anonymous"


class Keyring:
    """Owners by API key. Without keys the api is open, and all jobs belong to one owner."""

    def __init__(self, entries: Iterable[str]) -> None:
        """Each entry is `key` or `owner:key`; raises ValueError for an owner that cannot be part of a key's name."""
        self._owners: dict[bytes, str] = {}
        for entry in entries:
            name, _, key = entry.rpartition(":")
            if not key:
                raise ValueError("an API key is empty: write key or owner:key")
            hashed = hashlib.sha256(key.encode()).digest()
            self._owners[hashed] = keys.checked(name, "owner") if name else f"key-{hashed.hex()[:16]}"

    def owner(self, authorization: str | None) -> str:
        """The owner that an Authorization header stands for; raises ApiError 401."""
        if not self._owners:
            return ANONYMOUS
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise _unauthorized("No API key came: send `Authorization: Bearer <key>`.")
        # Looked up by its hash, so the time that it takes says nothing about the keys.
        owner = self._owners.get(hashlib.sha256(key.strip().encode()).digest())
        if owner is None:
            raise _unauthorized("This API key is not known here: check it, or ask the operator for one.")
        return owner


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


async def _owner(connection: HTTPConnection) -> str:
    return connection.app.state.service.keyring.owner(connection.headers.get("authorization"))


Owner = Annotated[str, Depends(_owner)]
