"""Recordings by URL: only from hosts on the list, only at addresses that may be reached, and never too much."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
from contextlib import asynccontextmanager

import httpx
import pytest

from api import allowed_hosts
from api.errors import ApiError
from api.reference_hosts import ReferenceHosts
from tests.api.conftest import serving
from tests.api.test_errors import shaped
from tests.api.test_references import CONTRACTS, SHA256
from tests.api.test_voices import SOUND

PUBLIC = "93.184.215.14"


@asynccontextmanager
async def web(answer):
    """A bare HTTP server; `answer(path)` gives the bytes of a response. Yields its port."""

    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        try:
            for piece in answer(head.split()[1].decode()):
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def ok(content: bytes, *headers: bytes) -> list[bytes]:
    return [b"\r\n".join([b"HTTP/1.1 200 OK", *headers, b"", b""]), content]


def redirect(to: str) -> list[bytes]:
    return [f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()]


def allowing(*entries: str, max_bytes: int = 1 << 20, timeout_s: float = 60) -> ReferenceHosts:
    return ReferenceHosts(entries, max_bytes=max_bytes, timeout_s=timeout_s)


@pytest.fixture
def names(monkeypatch):
    """A resolver: a name's addresses, to be filled in. Counts what was asked."""
    known: dict[str, list[str]] = {}

    async def resolved(host, port):
        return [ipaddress.ip_address(address) for address in known[host]]

    monkeypatch.setattr(allowed_hosts, "_resolved", resolved)
    return known


@pytest.fixture
def asked(monkeypatch) -> list[httpx.Request]:
    """Requests that would have left; all are answered with "sound"."""
    requests = []

    async def handle(self, request):
        requests.append(request)
        return httpx.Response(200, stream=httpx.ByteStream(b"sound"))

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", handle)
    return requests


async def refusal(hosts: ReferenceHosts, url: str) -> ApiError:
    with pytest.raises(ApiError) as refused:
        await hosts.fetch(url)
    assert (refused.value.status, refused.value.param) == (400, "ref_audio")
    return refused.value


# --- through the api ------------------------------------------------------------------------------------------------


async def test_a_recording_by_url_is_the_recording(broker):
    async with web(lambda path: ok(SOUND)) as port:
        async with serving(broker, CONTRACTS, reference_hosts=(f"localhost:{port}",)) as api:
            body = {"model": "parrot", "input": "la", "seed": 5, "ref_audio": f"http://localhost:{port}/a.wav"}
            answer = await api.http.post("/v1/jobs", json=body)
            assert answer.json()["params"]["ref_audio"] == SHA256 == hashlib.sha256(SOUND).hexdigest()
            elsewhere = body | {"ref_audio": f"http://localhost:{port + 1}/a.wav"}
            assert "allow the host" in shaped(await api.http.post("/v1/jobs", json=elsewhere), 400)["message"]


async def test_a_key_that_comes_again_gives_its_job_though_the_url_is_dead(real_broker):
    fetched = []
    async with web(lambda path: fetched.append(path) or ok(SOUND)) as port:
        async with serving(real_broker, CONTRACTS, reference_hosts=(f"localhost:{port}",)) as api:
            body = {"model": "parrot", "input": "la", "ref_audio": f"http://localhost:{port}/a.wav"}
            first, again = [
                await api.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k"}) for _ in range(2)
            ]
    assert (first.status_code, again.status_code, again.json()) == (202, 200, first.json())
    assert fetched == ["/a.wav"]
    async with serving(real_broker, CONTRACTS) as api:  # where nothing may be fetched at all
        last = await api.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k"})
        assert last.json() == first.json()


async def test_what_lies_there_must_be_a_recording(real_broker):
    async with web(lambda path: ok(b"<html>")) as port:
        async with serving(real_broker, CONTRACTS, reference_hosts=(f"localhost:{port}",)) as api:
            body = {"model": "parrot", "input": "la", "ref_audio": f"http://localhost:{port}/"}
            assert shaped(await api.http.post("/v1/jobs", json=body), 400)["code"] == "invalid_recording"


# --- which hosts ----------------------------------------------------------------------------------------------------


async def test_nothing_is_fetched_where_no_host_is_allowed():
    assert "base64" in str(await refusal(allowing(), "https://example.com/a.wav"))


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/a", "https://EXAMPLE.com./a", "https://example.com:443/a", "https://media.example.com:8443/",
        "https://93.184.215.14/a", "https://bücher.example/",
    ],
)  # fmt: skip
async def test_hosts_on_the_list_are_asked(names, asked, url):
    for name in ("example.com", "media.example.com", PUBLIC, "xn--bcher-kva.example"):
        names[name] = [PUBLIC]
    hosts = allowing("Example.com", "media.example.com:8443", PUBLIC, "bücher.example")
    assert await hosts.fetch(url) == b"sound"
    await hosts.close()


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.com/a", "https://example.com.evil.com/", "https://sub.example.com/", "https://example.com:8443/",
        "https://media.example.com/", "https://example.com@evil.com/", "https://user:pw@example.com/",
        "http://example.com/a", "https://169.254.169.254/", "https://[::1]/", "http://localhost/", "https:///a",
        "https://2130706433/", "https://example.com\\@evil.com/", "https://0x7f.1/", "https://[::1",
    ],
)  # fmt: skip
async def test_no_other_host_is_asked(names, asked, url):
    names["example.com"] = [PUBLIC]
    await refusal(allowing("example.com", "media.example.com:8443"), url)
    assert not asked


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "192.168.0.7", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "240.0.0.1", "::1", "::", "fe80::1", "fd00::1", "::ffff:10.1.2.3", "64:ff9b::a9fe:a9fe", "2002:a01:203::",
    ],
)  # fmt: skip
async def test_a_private_address_must_be_listed_beside_its_name(names, asked, address):
    names["example.com"] = [address]
    error = await refusal(allowing("example.com"), "https://example.com/a")
    assert "private" in str(error) and not asked
    entry = f"[{address}]" if ":" in address else address
    assert await allowing("example.com", entry).fetch("https://example.com/a") == b"sound"


async def test_only_localhost_is_asked_in_the_clear_and_at_its_own_address(names, asked):
    names["localhost"] = ["127.0.0.1"]
    assert await allowing("localhost").fetch("http://localhost/a") == b"sound"
    names["localhost"] = ["10.0.0.1"]
    await refusal(allowing("localhost"), "http://localhost/a")
    names["192.168.0.7"] = ["192.168.0.7"]
    await refusal(allowing("192.168.0.7"), "http://192.168.0.7/a")
    assert len(asked) == 1


async def test_the_address_that_was_checked_is_the_one_that_is_asked(names, asked):
    names["example.com"] = ["10.0.0.1", "2606:2800:21f::14", PUBLIC]
    await allowing("example.com:8443").fetch("https://example.com:8443/a?b=c#d")
    [request] = asked
    assert str(request.url) == "https://[2606:2800:21f::14]:8443/a?b=c"
    assert request.headers["host"] == "example.com:8443"
    assert request.extensions["sni_hostname"] == "example.com", "the certificate must be the name's"
    assert "cookie" not in request.headers and "authorization" not in request.headers


@pytest.mark.parametrize(
    "entry", ["", "https://example.com", "a b", "example.com:0", "example.com:99999", "*.com", "a/b"]
)
def test_what_is_no_host_is_refused_at_the_start(entry):
    with pytest.raises(ValueError, match="host:port"):
        allowing(entry)


# --- how it is fetched ----------------------------------------------------------------------------------------------


async def test_a_redirect_is_followed_on_the_list_and_nowhere_else():
    async with web(lambda path: ok(b"secret")) as other:

        def answer(path: str) -> list[bytes]:
            where = {
                "/on": "/end",
                "/off": f"http://127.0.0.1:{other}/",
                "/again": "/again",
                "/file": "file:///etc/passwd",
            }
            return redirect(where[path]) if path in where else ok(b"sound")

        async with web(answer) as port:
            hosts = allowing(f"localhost:{port}")
            assert await hosts.fetch(f"http://localhost:{port}/on") == b"sound"
            assert "allow the host" in str(await refusal(hosts, f"http://localhost:{port}/off"))
            assert "https" in str(await refusal(hosts, f"http://localhost:{port}/file"))
            assert "more than 3" in str(await refusal(hosts, f"http://localhost:{port}/again"))
            await hosts.close()


async def test_too_much_is_not_read_whatever_its_head_says():
    sent = 0

    def endless(path: str):
        nonlocal sent
        yield b"HTTP/1.1 200 OK\r\n\r\n"
        while True:
            sent += 1 << 16
            yield b"\0" * (1 << 16)

    async with web(endless) as port:
        error = await refusal(allowing(f"localhost:{port}", max_bytes=100_000), f"http://localhost:{port}/")
        assert error.code == "invalid_recording" and "100000 bytes" in str(error)
    assert sent < 100 << 20


async def test_a_body_is_not_unfolded():
    async with web(lambda path: ok(b"\x1f\x8b not gzip", b"Content-Encoding: gzip")) as port:
        assert await allowing(f"localhost:{port}").fetch(f"http://localhost:{port}/") == b"\x1f\x8b not gzip"


async def test_a_host_that_does_not_answer_is_given_up():
    async with web(lambda path: asyncio.sleep(3600)) as port:
        pass
    assert "ConnectError" in str(await refusal(allowing(f"localhost:{port}"), f"http://localhost:{port}/"))

    async def silent(reader, writer):
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        slow = allowing(f"localhost:{port}", timeout_s=0.3)
        assert "over 0.3 s" in str(await refusal(slow, f"http://localhost:{port}/"))


async def test_a_host_that_refuses_is_named_with_its_status():
    async with web(lambda path: [b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"]) as port:
        error = await refusal(allowing(f"localhost:{port}"), f"http://localhost:{port}/")
        assert error.code == "reference_unreachable" and "403" in str(error)


async def test_no_proxy_is_asked(monkeypatch):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with web(lambda path: ok(b"the proxy's")) as proxy, web(lambda path: ok(b"sound")) as port:
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy}")
        assert await allowing(f"localhost:{port}").fetch(f"http://localhost:{port}/") == b"sound"
