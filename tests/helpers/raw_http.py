"""HTTP as bytes on a socket, for clients that no library would be."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

Address = tuple[str, int]


def request(body: bytes, *headers: str, path: str = "/v1/completions") -> bytes:
    """A POST of JSON."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *headers]
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def connect(address: Address, *, receive_bytes: int | None = None) -> socket.socket:
    """A connection; `receive_bytes` limits what the system takes in before anybody reads."""
    connection = socket.socket()
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.settimeout(60)
    connection.connect(address)
    return connection


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server hangs up."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def exchange(address: Address, sent: bytes) -> bytes:
    """What a server answers before it hangs up."""
    with connect(address) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(sent)
        return read_all(connection)


def status_of(answer: bytes) -> int:
    """Of the first answer in `answer`."""
    return int(answer.split(b" ", 2)[1])


def error_in(answer: bytes) -> dict[str, Any]:
    """The error in an answer's body, whose shape is OpenAI's."""
    body = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error
