"""The process around the application: socket, signals, and a shutdown that finishes streams."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from spec_compile.errors import SpecCompileError
from spec_compile.runtime.async_decoder import AsyncDecoder
from spec_compile.serving.app import create_app
from spec_compile.serving.connection import HEAD_BYTES, connection_class
from spec_compile.serving.readiness import Readiness
from spec_compile.serving.settings import ServerSettings

_LOG = logging.getLogger(__name__)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Server(uvicorn.Server):
    """uvicorn whose first signal ends it in order and whose second ends it at once.

    Args:
        decoder: see `create_app`.
        settings: limits and names.
        host: address to listen on.
        port: 0 takes a free one.
        drain_seconds: what streams get to finish after the signal.
    """

    def __init__(
        self,
        decoder: AsyncDecoder,
        settings: ServerSettings,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        drain_seconds: int = 30,
    ) -> None:
        self._readiness = Readiness()
        config = uvicorn.Config(
            create_app(decoder, settings, self._readiness),
            host=host,
            port=port,
            http=connection_class(settings),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=settings.idle_seconds,  # type: ignore[arg-type]
            timeout_graceful_shutdown=drain_seconds,
            h11_max_incomplete_event_size=HEAD_BYTES,
        )
        super().__init__(config)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on, once started."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return str(host), int(port)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say where."""
        await super().startup(sockets=sockets)
        if self.started:
            host, port = self.address
            _LOG.info("listening", extra={"fields": {"host": host, "port": port}})

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take no more connections; finish what is open. The second time, do not finish."""
        self._readiness.draining = True
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, which sends itself the signal again afterwards: ours ends with success."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {one: signal.signal(one, self.handle_exit) for one in _SIGNALS}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


def serve(
    decoder: AsyncDecoder,
    settings: ServerSettings,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    drain_seconds: int = 30,
) -> None:
    """Serve until a signal comes.

    Raises:
        SpecCompileError: the server could not start.
    """
    server = Server(decoder, settings, host=host, port=port, drain_seconds=drain_seconds)
    try:
        server.run()
    except SystemExit as error:
        raise SpecCompileError(f"cannot listen on {host}:{port}; is the port in use?") from error
    finally:
        decoder.decoder.close()
    if not server.started:
        raise SpecCompileError("the server could not start; its log says why")
