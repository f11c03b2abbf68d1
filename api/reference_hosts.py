"""Recordings by URL: from hosts that the operator allows, and from nowhere else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING

from api.allowed_hosts import AllowedHosts
from api.errors import ApiError

if TYPE_CHECKING:
    import httpx  # loaded by those who allow hosts

_REDIRECTS = 3
_REDIRECTED = (301, 302, 303, 307, 308)
_HEADERS = {"Accept": "audio/*", "Accept-Encoding": "identity"}


class ReferenceHosts:
    """Where recordings may be fetched from; no host at all switches fetching off.

    Args:
        entries: as AllowedHosts has them.
        max_bytes: of a recording.
        timeout_s: for all of a fetch.

    Raises:
        ValueError: an entry is no host.
    """

    def __init__(self, entries: Iterable[str] = (), *, max_bytes: int, timeout_s: float) -> None:
        self._hosts = AllowedHosts(entries, field="ref_audio", instead=", or send base64", timeout_s=timeout_s)
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    async def fetch(self, url: str) -> bytes:
        """What lies at the URL; raises ApiError 400 saying why nothing can be had from there."""
        if not self._hosts:
            message = "ref_audio cannot be a URL here: send the recording itself, as base64."
            raise ApiError(400, message, code="invalid_value", param="ref_audio")
        import httpx

        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._fetch(self._hosts.url(url))
        except socket.gaierror:
            raise _unreachable("its host has no address") from None
        except TimeoutError:
            raise _unreachable(f"it took over {self._timeout_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
            raise _unreachable(type(error).__name__) from None

    async def close(self) -> None:
        await self._hosts.close()

    async def _fetch(self, url: httpx.URL) -> bytes:
        for _ in range(_REDIRECTS + 1):
            answer = await self._hosts.send("GET", url, headers=_HEADERS)
            try:
                if answer.status_code in _REDIRECTED and "location" in answer.headers:
                    url = url.join(answer.headers["location"])
                    continue
                if answer.status_code != 200:
                    raise _unreachable(f"its host answers {answer.status_code}")
                return await self._bounded(answer)
            finally:
                await answer.aclose()
        raise _unreachable(f"it is redirected more than {_REDIRECTS} times")

    async def _bounded(self, answer: httpx.Response) -> bytes:
        """The body as it is on the wire: nothing that unfolds to more than was counted."""
        content = bytearray()
        async for piece in answer.aiter_raw():
            content += piece
            if len(content) > self._max_bytes:
                message = f"What lies at ref_audio is over {self._max_bytes} bytes: use a shorter recording, or an MP3."
                raise ApiError(400, message, code="invalid_recording", param="ref_audio")
        return bytes(content)


def _unreachable(why: str) -> ApiError:
    message = f"ref_audio cannot be fetched ({why}): check the URL, or send the recording as base64."
    return ApiError(400, message, code="reference_unreachable", param="ref_audio")
