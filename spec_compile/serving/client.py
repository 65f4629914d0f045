"""The other end of a request: its body within limits, and whether it is still there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from spec_compile.serving.problems import ApiError, invalid
from spec_compile.serving.settings import ServerSettings
from spec_compile.serving.wire import from_json

T = TypeVar("T")
_JSON = "application/json"
_DISCARDED = 2**24  # bytes of a body that is too large: many clients read when they have written


class ClientGone(Exception):
    """The client has left: nobody reads an answer."""


async def read_body(request: Request, settings: ServerSettings) -> dict[str, Any]:
    """The JSON object that a client sent.

    Raises:
        ApiError: not announced as JSON, too large, too slow, or not a JSON object.
        ClientGone: it left before the end.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _JSON:  # a web page may send other kinds anywhere without asking
        raise ApiError(415, f"the Content-Type must be {_JSON}", code="unsupported_media_type")
    try:
        async with asyncio.timeout(settings.body_seconds):
            body = await _read(request, settings.max_body_bytes)
    except TimeoutError as error:
        raise ApiError(408, "the body did not come in in time", code="timeout") from error
    except ClientDisconnect as error:
        raise ClientGone from error
    try:
        return from_json(body)
    except ValueError as error:
        raise invalid(str(error)) from error


async def _read(request: Request, most: int) -> bytes:
    too_large = ApiError(413, f"the body has more than {most} bytes", code="too_large")
    announced = request.headers.get("content-length", "")
    waits = request.headers.get("expect", "").lower() == "100-continue"
    if announced.isdecimal() and int(announced[:20]) > (most if waits else most + _DISCARDED):
        raise too_large
    body, num_read = bytearray(), 0
    async for part in request.stream():
        num_read += len(part)
        if num_read <= most:
            body += part
        elif num_read > most + _DISCARDED:
            break
    if num_read > most:
        raise too_large
    return bytes(body)


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The outcome of `work`, which is cancelled when the client leaves.

    Raises:
        ClientGone: it left first.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_leaves(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for one in (task, watch):
            one.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _leaves(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
