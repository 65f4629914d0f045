"""Real servers on loopback over toy bundles."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

import httpx

from spec_compile.runtime.api import Decoder, load
from spec_compile.runtime.async_decoder import AsyncDecoder
from spec_compile.runtime.shared_decoder import SharedDecoder
from spec_compile.runtime.tokenizer import BundleTokenizer
from spec_compile.serving.server import Server
from spec_compile.serving.settings import ServerSettings
from tests.helpers.gate import GatedEngine
from tests.helpers.toy_bundle import Toy, write_toy_bundle

TOY = Toy(max_length=96)
MODEL = "toy"


@dataclass
class Running:
    """A server, a client of it, the gate of its engine, and a plain decoder of its bundle."""

    server: Server
    client: httpx.Client
    engine: GatedEngine
    plain: Decoder
    shared: SharedDecoder


class Announced(Server):
    """A server that says when it listens."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.ready = threading.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.ready.set()


StartServer = Callable[..., Running]


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder: Path = write_toy_bundle(TOY, tmp_path_factory.mktemp("served") / MODEL)
    return load(folder, num_threads=1)


@pytest.fixture
def start(plain: Decoder) -> Iterator[StartServer]:
    """`start(num_slots=..., tokenizer=..., **settings)`: a running server."""
    started: list[tuple[Running, threading.Thread]] = []

    def build(
        *,
        num_slots: int = 2,
        max_queue: int = 64,
        tokenizer: BundleTokenizer | None = None,
        **settings: Any,
    ) -> Running:
        engine = GatedEngine(plain.engine)
        shared = SharedDecoder(
            plain.bundle,
            engine,
            tokenizer or plain.tokenizer,
            num_slots=num_slots,
            max_queue=max_queue,
        )
        server = Announced(
            AsyncDecoder(shared), ServerSettings(MODEL, **settings), port=0, drain_seconds=20
        )
        thread = threading.Thread(target=server.run)
        thread.start()
        assert server.ready.wait(30)
        host, port = server.address
        client = httpx.Client(base_url=f"http://{host}:{port}", timeout=30)
        started.append((Running(server, client, engine, plain, shared), thread))
        return started[-1][0]

    yield build
    for running, thread in started:
        running.engine.open()
        running.client.close()
        running.server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
        assert not running.shared.scheduler.is_running


@pytest.fixture
def running(start: StartServer) -> Running:
    """A server with two slots."""
    return start()
