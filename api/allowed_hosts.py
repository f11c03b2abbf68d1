"""Hosts that the operator allows to be asked: those on a list, at addresses that may be reached, and no others."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING

from api.errors import ApiError, quoted

if TYPE_CHECKING:
    import httpx  # loaded by those who allow hosts

_ENTRY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s\[\]:/@?#]+)(?::(\d{1,5}))?")
_NAME = re.compile(r"(?!-)[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63})*")
_LOCALHOST = "localhost"
_PORTS = {"https": 443, "http": 80}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = IPv4Address | IPv6Address


class AllowedHosts:
    """The hosts that a request's field may name in its URL.

    Args:
        entries: each `host` or `host:port`, in full; without a port it is the scheme's own. A host that has a private
            address is reached only where that address is an entry too; `localhost` stands for its own.
        field: the request's, as refusals name it.
        instead: what a client may do in place of having a host allowed, as the end of a sentence.
        timeout_s: for each step of a request.

    Raises:
        ValueError: an entry is no host.
    """

    def __init__(self, entries: Iterable[str], *, field: str, instead: str, timeout_s: float) -> None:
        self._ports: dict[str, set[int | None]] = {}
        for entry in entries:
            host, port = parsed(entry)
            self._ports.setdefault(host, set()).add(port)
        self._addresses = {address for address in map(_address, self._ports) if address is not None}
        self._field = field
        self._instead = instead
        self._timeout_s = timeout_s
        self._client: httpx.AsyncClient | None = None

    def __bool__(self) -> bool:
        return bool(self._ports)

    def url(self, text: str) -> httpx.URL:
        """The URL that a client sent; raises ApiError 400 where it is none, or its host is not on the list."""
        import httpx

        try:
            url = httpx.URL(text)
            self._host(url)
        except (httpx.InvalidURL, UnicodeError):
            raise self._refused(f"{self._field} {quoted(text)} is no URL that can be used.") from None
        return url

    async def addresses(self, url: httpx.URL) -> list[Address]:
        """Where the URL's host may be reached; raises ApiError 400 where it is nowhere but at private addresses.

        Raises OSError where the name has none.
        """
        host = self._host(url)
        found = await _resolved(host, _port(url))
        reachable = [address for address in found if self._public_or_listed(address, host)]
        if found and not reachable:
            asked = quoted(host)
            raise self._refused(f"{self._field} cannot be at {asked}: its address is private, and not allowed here.")
        return reachable

    async def send(
        self, method: str, url: httpx.URL, *, headers: Mapping[str, str], content: bytes | None = None
    ) -> httpx.Response:
        """Ask the address that was checked, whatever the name comes to mean in the meantime.

        Returns:
            The response with its body unread, whatever it says; the caller closes it.

        Raises:
            ApiError: the host is not allowed.
            httpx.HTTPError, OSError: it cannot be reached.
        """
        import httpx

        host = self._host(url)
        if self._client is None:  # no proxies: they would look the name up themselves; no connection is used twice
            limits = httpx.Limits(max_keepalive_connections=0)
            self._client = httpx.AsyncClient(trust_env=False, timeout=self._timeout_s, limits=limits)
        error: Exception | None = None
        for address in await self.addresses(url):
            asked = self._client.build_request(
                method,
                url.copy_with(host=str(address), fragment=None),
                headers={"Host": url.netloc.decode(), **headers},
                content=content,
                extensions={"sni_hostname": host},
            )
            try:
                return await self._client.send(asked, stream=True)
            except httpx.ConnectError as refused:
                error = refused
        raise error or OSError("the name has no address")

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    def _host(self, url: httpx.URL) -> str:
        """The URL's host, if it is on the list; raises ApiError."""
        host = _normal(url.raw_host.decode())
        local = host == _LOCALHOST or ((address := _address(host)) is not None and address.is_loopback)
        if url.scheme != "https" and not (url.scheme == "http" and local):
            raise self._refused(f"{self._field} must be an https URL.")
        if url.userinfo:
            raise self._refused(f"{self._field} must be a URL without a user's name or password.")
        port = _port(url)
        ports = self._ports.get(host, set())
        if not (port in ports or (None in ports and port == _PORTS[url.scheme])):
            asked = quoted(url.netloc.decode())
            what_to_do = f"ask the operator to allow the host{self._instead}"
            raise self._refused(f"{self._field} cannot be at {asked}: {what_to_do}.")
        return host

    def _public_or_listed(self, address: Address, host: str) -> bool:
        if address in self._addresses or (host == _LOCALHOST and address.is_loopback):
            return True
        return all(part.is_global and not part.is_multicast for part in (address, *_embedded(address)))

    def _refused(self, message: str) -> ApiError:
        return ApiError(400, message, code="invalid_value", param=self._field)


def _port(url: httpx.URL) -> int:
    return url.port or _PORTS[url.scheme]


async def _resolved(host: str, port: int) -> list[Address]:
    """The addresses of a name, in the system's order."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ipaddress.ip_address(str(sockaddr[0]).partition("%")[0]) for *_, sockaddr in found))


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
