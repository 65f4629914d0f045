"""What goes wrong for a client, in the shape that OpenAI's clients expect."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from spec_compile.errors import (
    BackendError,
    ClosedError,
    ConfigError,
    GenerationError,
    PromptTooLongError,
    QueueFullError,
    SpecCompileError,
)
from spec_compile.serving.bodies import ErrorBody
from spec_compile.serving.wire import to_json

INVALID, OVERLOADED, SERVER = "invalid_request_error", "rate_limit_error", "server_error"
TOO_LONG = "context_length_exceeded"
_LONGEST_NAME = 60  # characters of a client's own text that a message repeats


class ApiError(Exception):
    """Ends a request with an error body.

    Args:
        status: of HTTP.
        message: one line.
        kind: `type` of the error.
        param: the field at fault.
        code: for programs.
        headers: more than the status asks for.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.param, self.code = status, kind, param, code
        self._headers = dict(headers or {})

    def body(self) -> ErrorBody:
        """What the client reads."""
        return {
            "error": {
                "message": str(self),
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> Response:
        """The whole answer."""
        headers = self._headers | ({"Retry-After": "1"} if self.status in (429, 503) else {})
        if self.status in (408, 413):
            headers["Connection"] = "close"  # the rest of the body stays unread
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return Response(to_json(self.body()), self.status, headers, media_type="application/json")


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A request that can never be served."""
    return ApiError(400, message, param=param, code=code)


def internal() -> ApiError:
    """A fault of our own; what it was is for the log alone."""
    return ApiError(500, "internal error; the server's log says more", kind=SERVER)


def explain(error: SpecCompileError) -> ApiError:
    """The answer to an error of the runtime."""
    if isinstance(error, QueueFullError):
        return ApiError(429, str(error), kind=OVERLOADED, code="queue_full")
    if isinstance(error, ClosedError):
        return ApiError(503, "the server is shutting down", kind=SERVER, code="unavailable")
    if isinstance(error, PromptTooLongError):
        return invalid(str(error), code=TOO_LONG)
    if isinstance(error, ConfigError | GenerationError):
        return invalid(str(error))
    if isinstance(error, BackendError):
        return ApiError(500, "the engine failed", kind=SERVER)
    return internal()


def shown(text: object) -> str:
    """A client's own text, short enough for a message."""
    plain = repr(text)
    return plain if len(plain) <= _LONGEST_NAME else f"{plain[:_LONGEST_NAME]}..."
