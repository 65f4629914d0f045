"""What stands around every request: key, concurrency, the last catch of errors, the log's line."""

from __future__ import annotations

import hmac
import logging
import secrets
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spec_compile.serving.client import ClientGone
from spec_compile.serving.log import ACCESS, noted
from spec_compile.serving.metrics import Metrics
from spec_compile.serving.problems import OVERLOADED, ApiError, internal
from spec_compile.serving.settings import ServerSettings

_LOG = logging.getLogger(__name__)
_GONE = 499  # the log's status of a client that left, as nginx writes it
_PROTECTED = "/v1/"


class Guard:
    """ASGI middleware around the whole application.

    Args:
        app: the application.
        settings: key and limits.
        metrics: counts answers.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; see the class."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = _Watched(send)
        started = time.perf_counter()
        protected = scope["path"].startswith(_PROTECTED)
        self._open += protected
        try:
            try:
                if protected:
                    self._admit(scope)
                await self._app(scope, receive, request.send)
            except ApiError as error:
                await error.response()(scope, receive, request.send)
            except ClientGone:
                request.status = _GONE
            except Exception:  # noqa: BLE001 - the last catch
                _LOG.exception("request %s failed", request.id)
                if request.status is None:
                    await internal().response()(scope, receive, request.send)
        finally:
            self._open -= protected
            self._log(scope, request, 1000.0 * (time.perf_counter() - started))

    def _admit(self, scope: Scope) -> None:
        key = self._settings.api_key
        if key is not None and scope["method"] != "OPTIONS":
            given = Headers(scope=scope).get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(given, f"Bearer {key}".encode("ascii")):
                raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
        if self._open > self._settings.max_concurrency:
            raise ApiError(
                429, "too many requests are open; try again later", kind=OVERLOADED, code="busy"
            )

    def _log(self, scope: Scope, request: _Watched, milliseconds: float) -> None:
        status = request.status or _GONE
        self._metrics.answered(status)
        fields = {
            "id": request.id,
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "milliseconds": round(milliseconds, 1),
            **noted(scope),
        }
        ACCESS.info("request", extra={"fields": fields})


class _Watched:
    """A `send` that notes the status and adds the request's id to the headers."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.id = secrets.token_hex(8)
        self.status: int | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message)["X-Request-Id"] = self.id
        await self._send(message)
