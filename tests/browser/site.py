"""The api, its embedded broker and its page, in a thread of this process. The jobs' workers are a `Player`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
from starlette.responses import FileResponse

from api.app import create_app
from api.settings import ApiSettings
from broker_schemas.contract import BadField, Contract, Order
from compose.api_server import ApiServer
from compose.broker import EmbeddedBroker
from compose.port import listening_socket
from tests.api.player import HumContract, Player
from tests.waiting import PATIENCE_S

RECORDER = Path(__file__).with_name("recorder.js")


class SongContract(HumContract):
    """Takes `voice` to refuse it, as a model may that has none."""

    fields = HumContract.fields | {"voice"}


class SpeechContract(HumContract):
    """Hums in a voice of its own, in a language: to the page, a model that speaks."""

    model = "murmur"
    sample_rate = 24_000
    fields = HumContract.fields | {"voice", "language", "temperature"}
    voices = ("anna", "ben")

    def accept(self, body: Mapping[str, object]) -> Order:
        if not isinstance(body.get("temperature", 1.0), (int, float)):
            raise BadField("temperature", "temperature must be a number.")
        order = super().accept({name: value for name, value in body.items() if name != "voice"})
        return Order(order.input, order.params | {"voice": body["voice"]}, order.max_frames, order.reserve_bytes)


class CloneContract(SpeechContract):
    """Speaks as an uploaded voice does, and keeps what else it was asked for."""

    model = "parrot"
    settings = frozenset({"top_k", "repetition_penalty", "do_sample", "async_chunk"})
    fields = SpeechContract.fields | settings | {"ref_audio", "ref_text"}
    voices = ()
    clones = True

    def accept(self, body: Mapping[str, object]) -> Order:
        if body.get("top_k", 0) == 9:
            raise BadField("top_k", "top_k must be another number.")
        order = super().accept(body)
        asked = {name: body[name] for name in self.settings if name in body}
        return Order(order.input, order.params | asked, order.max_frames, order.reserve_bytes)


class Site:
    def __init__(self, url: str, broker: EmbeddedBroker) -> None:
        self.url = url
        self.broker = broker
        self.http = httpx.Client(base_url=url, timeout=PATIENCE_S)

    def submitted(self, **fields: object) -> dict:
        answer = self.http.post("/v1/jobs", json={"model": "hum", "input": "la la", "seed": 5} | fields)
        return answer.raise_for_status().json()

    def player(self, job: str) -> Player:
        return Player(self.broker, job)

    def jobs(self) -> list[dict]:
        return self.http.get("/v1/jobs").raise_for_status().json()["data"]

    def job(self, job: str) -> dict:
        return self.http.get(f"/v1/jobs/{job}").raise_for_status().json()

    def pcm(self, job: str) -> bytes:
        """A completed job's sound."""
        return self.http.get(f"/v1/jobs/{job}/audio", params={"format": "pcm"}).raise_for_status().content


@contextmanager
def serving(
    broker: EmbeddedBroker | None = None, port: int = 0, contracts: Sequence[Contract] = (), **settings: object
) -> Iterator[Site]:
    """A site at a port; a broker that is handed in outlives it."""
    broker = broker or EmbeddedBroker()
    served = {contract.model: contract for contract in contracts or (SongContract(), SpeechContract(), CloneContract())}
    app = create_app(broker, served, ApiSettings(**settings))
    app.add_api_route("/recorder.js", lambda: FileResponse(RECORDER))
    with listening_socket("127.0.0.1", port) as sock:
        server = ApiServer(app, grace_s=1, log_level="warning")
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        site = Site(f"http://127.0.0.1:{sock.getsockname()[1]}", broker)
        try:
            yield site
        finally:
            site.http.close()
            server.finish()
            thread.join(PATIENCE_S)
