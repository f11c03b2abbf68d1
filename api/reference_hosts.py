"""Recordings by URL: from hosts that the operator allows, and from nowhere else."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING

from api.errors import ApiError, quoted

if TYPE_CHECKING:
    import httpx  # loaded by those who allow hosts

_ENTRY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s\[\]:/@?#]+)(?::(\d{1,5}))?")
_NAME = re.compile(r"(?!-)[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63})*")
_LOCALHOST = "localhost"
_PORTS = {"https": 443, "http": 80}
_REDIRECTS = 3
_REDIRECTED = (301, 302, 303, 307, 308)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = IPv4Address | IPv6Address


class ReferenceHosts:
    """The hosts that recordings may be fetched from; none at all switches fetching off.

    Args:
        entries: each `host` or `host:port`, in full; without a port it is the scheme's own. A host that has a private
            address is reached only where that address is an entry too; `localhost` stands for its own.
        max_bytes: of a recording.
        timeout_s: for all of a fetch.

    Raises:
        ValueError: an entry is no host.
    """

    def __init__(self, entries: Iterable[str] = (), *, max_bytes: int, timeout_s: float) -> None:
        self._ports: dict[str, set[int | None]] = {}
        for entry in entries:
            host, port = parsed(entry)
            self._ports.setdefault(host, set()).add(port)
        self._addresses = {address for address in map(_address, self._ports) if address is not None}
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._client: httpx.AsyncClient | None = None

    async def fetch(self, url: str) -> bytes:
        """What lies at the URL; raises ApiError 400 saying why nothing can be had from there."""
        if not self._ports:
            raise _refused("ref_audio cannot be a URL here: send the recording itself, as base64.")
        import httpx

        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._fetch(httpx.URL(url))
        except (httpx.InvalidURL, UnicodeError):
            raise _refused(f"ref_audio {quoted(url)} is no URL that can be used.") from None
        except socket.gaierror:
            raise _unreachable("its host has no address") from None
        except TimeoutError:
            raise _unreachable(f"it took over {self._timeout_s:g} s") from None
        except (httpx.HTTPError, OSError) as error:
            raise _unreachable(type(error).__name__) from None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _fetch(self, url: httpx.URL) -> bytes:
        for _ in range(_REDIRECTS + 1):
            answer = await self._open(url)
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

    async def _open(self, url: httpx.URL) -> httpx.Response:
        """Ask the address that was checked, whatever the name comes to mean in the meantime."""
        import httpx

        host = self._allowed(url)
        port = url.port or _PORTS[url.scheme]
        if self._client is None:  # no proxies: they would look the name up themselves; no connection is used twice
            limits = httpx.Limits(max_keepalive_connections=0)
            self._client = httpx.AsyncClient(trust_env=False, timeout=self._timeout_s, limits=limits)
        error: Exception | None = None
        for address in await self._reachable(host, port):
            asked = self._client.build_request(
                "GET",
                url.copy_with(host=str(address), fragment=None),
                headers={"Host": url.netloc.decode(), "Accept": "audio/*", "Accept-Encoding": "identity"},
                extensions={"sni_hostname": host},
            )
            try:
                return await self._client.send(asked, stream=True)
            except httpx.ConnectError as refused:
                error = refused
        raise error or OSError("the name has no address")

    def _allowed(self, url: httpx.URL) -> str:
        """The URL's host, if it is on the list; raises ApiError."""
        host = _normal(url.raw_host.decode())
        local = host == _LOCALHOST or ((address := _address(host)) is not None and address.is_loopback)
        if url.scheme != "https" and not (url.scheme == "http" and local):
            raise _refused("ref_audio must be an https URL.")
        if url.userinfo:
            raise _refused("ref_audio must be a URL without a user's name or password.")
        port = url.port or _PORTS[url.scheme]
        ports = self._ports.get(host, set())
        if not (port in ports or (None in ports and port == _PORTS[url.scheme])):
            asked = quoted(url.netloc.decode())
            raise _refused(
                f"ref_audio cannot be fetched from {asked}: ask the operator to allow the host, or send base64."
            )
        return host

    async def _reachable(self, host: str, port: int) -> list[Address]:
        addresses = await _resolved(host, port)
        reachable = [address for address in addresses if self._public_or_listed(address, host)]
        if addresses and not reachable:
            asked = quoted(host)
            raise _refused(
                f"ref_audio cannot be fetched from {asked}: its address is private, and is not allowed here."
            )
        return reachable

    def _public_or_listed(self, address: Address, host: str) -> bool:
        if address in self._addresses or (host == _LOCALHOST and address.is_loopback):
            return True
        return all(part.is_global and not part.is_multicast for part in (address, *_embedded(address)))

    async def _bounded(self, answer: httpx.Response) -> bytes:
        """The body as it is on the wire: nothing that unfolds to more than was counted."""
        content = bytearray()
        async for piece in answer.aiter_raw():
            content += piece
            if len(content) > self._max_bytes:
                message = f"What lies at ref_audio is over {self._max_bytes} bytes: use a shorter recording, or an MP3."
                raise ApiError(400, message, code="invalid_recording", param="ref_audio")
        return bytes(content)


async def _resolved(host: str, port: int) -> list[Address]:
    """The addresses of a name, in the system's order."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ipaddress.ip_address(sockaddr[0].partition("%")[0]) for *_, sockaddr in found))


def _embedded(address: Address) -> list[Address]:
    """The IPv4 addresses that an IPv6 one leads to."""
    if address.version == 4:
        return []
    nat64 = IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None
    return [inner for inner in (address.ipv4_mapped, address.sixtofour, nat64) if inner is not None]


def parsed(entry: str) -> tuple[str, int | None]:
    """(host, port) of an entry, no port being the scheme's own; raises ValueError."""
    found = _ENTRY.fullmatch(entry)
    if found is None:
        raise ValueError(f"{entry!r} is no host: write host or host:port, without a scheme")
    port = int(found[2]) if found[2] else None
    try:
        host = _normal(found[1].encode("idna").decode())
    except UnicodeError:
        host = ""
    if not (_NAME.fullmatch(host) or _address(host)) or (port is not None and not 0 < port < 65536):
        raise ValueError(f"{entry!r} is no host: write host or host:port, without a scheme")
    return host, port


def _normal(host: str) -> str:
    """A name in lower case without the root's dot; an address as it is always written."""
    host = host.lower().removesuffix(".").strip("[]")
    return str(_address(host) or host)


def _address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _refused(message: str) -> ApiError:
    return ApiError(400, message, code="invalid_value", param="ref_audio")


def _unreachable(why: str) -> ApiError:
    message = f"ref_audio cannot be fetched ({why}): check the URL, or send the recording as base64."
    return ApiError(400, message, code="reference_unreachable", param="ref_audio")
