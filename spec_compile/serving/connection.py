"""One connection: uvicorn's, with an end to whatever a client can draw out.

A client may be slow with a request's head, with its body (see `read_body`) and in reading its
answer. None of it holds a connection, a row or memory for longer than the settings say.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from http import HTTPStatus
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from spec_compile.serving.problems import OVERLOADED, ApiError
from spec_compile.serving.settings import ServerSettings
from spec_compile.serving.wire import to_json

HEAD_BYTES = 65536  # of a request: its line and headers
_SYSTEM_BYTES = 2**17  # of answers that a client has not taken yet
_PIPELINED_BYTES = 65536  # that may wait behind a request whose answer is on its way


class Connection(H11Protocol):
    """What uvicorn makes of an accepted socket; see `connection_class`."""

    limits: ClassVar[ServerSettings]
    _head_timer: asyncio.TimerHandle | None = None
    _send_timer: asyncio.TimerHandle | None = None
    _unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect a request, unless there are too many connections."""
        super().connection_made(transport)
        # Whatever the system does not take at once pauses the writer: a reader that stands still
        # costs a small buffer of the system and one event, and is noticed.
        transport.set_write_buffer_limits(high=0)
        opened: socket.socket = transport.get_extra_info("socket")
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SYSTEM_BYTES)
        if len(self.connections) > self.limits.max_connections:
            self._refuse(ApiError(503, "too many connections", kind=OVERLOADED, code="busy"))
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave nothing behind."""
        self._stop_head_timer()
        self._stop_send_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take data; a head in small parts, so that its limit holds whatever comes at once."""
        part = HEAD_BYTES // 4 if self.conn.their_state is h11.IDLE else len(data)
        for place in range(0, len(data), part):
            if self.transport.is_closing():
                return
            super().data_received(data[place : place + part])
        if not self._is_serving():
            self._expect_head()
            return
        self._stop_head_timer()
        # uvicorn stops reading when a next request comes too early, and then does not see that the
        # client leaves.
        waiting = len(self.conn.trailing_data[0])
        if self.flow.read_paused and not self.cycle.more_body and waiting <= _PIPELINED_BYTES:
            self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP (called where h11 complains of it)."""
        error = sys.exc_info()[1]
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        self._refuse(ApiError(status, msg))

    def pause_writing(self) -> None:
        """The client does not take what it is sent."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """The client has taken all of it."""
        self._stop_send_timer()
        super().resume_writing()

    def _is_serving(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _expect_head(self) -> None:
        if self._head_timer is None and not self.transport.is_closing():
            seconds = self.limits.head_seconds
            self._head_timer = self.loop.call_later(seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._is_serving() or self.transport.is_closing():
            return
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            message = "the request's head did not come in in time"
            self._refuse(ApiError(408, message, code="timeout"))
        else:
            self.transport.abort()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _watch_reader(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        self._send_timer = self.loop.call_later(self.limits.send_seconds, self._reader_is_late)

    def _reader_is_late(self) -> None:
        if self.transport.get_write_buffer_size() < self._unsent:
            self._watch_reader()
        else:
            self.transport.abort()

    def _stop_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _refuse(self, error: ApiError) -> None:
        """Answer without the application, and hang up."""
        if self._is_serving():
            self.cycle.disconnected = True  # nobody will read its answer
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()  # in the middle of an answer
            return
        body = to_json(error.body())
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        reason = HTTPStatus(error.status).phrase
        head = h11.Response(status_code=error.status, headers=headers, reason=reason.encode())
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def connection_class(settings: ServerSettings) -> type[Connection]:
    """The class of a server's connections."""
    return type("LimitedConnection", (Connection,), {"limits": settings})
