"""The deployment that clients talk to: OpenAI's completions, and what happens when a replica dies.

A request whose replica dies before its first piece goes to another one. One that has begun to
stream ends with an error event: what came before is valid.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

_OPTIONS = {
    "max_tokens": "max_new_tokens",
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "seed", "stop")},
    **{name: name for name in ("ignore_eos", "speculative")},
}
_DIED = "the replica that served this request died; what came before is valid, send it again"


class RefusedError(Exception):
    """A request that no replica can serve; says the status of the response."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Completion:
    """A request as the engine wants it."""

    prompt: str
    options: dict[str, Any]
    stream: bool


class Gateway:
    """Passes requests on to the engine's replicas.

    Args:
        engine: a handle of the deployment of `Engine`.
        attempts: replicas on which a request is tried.
    """

    def __init__(self, engine: Any, attempts: int = 3) -> None:
        self._engine = engine.options(method_name="answer", stream=True)
        self._attempts = attempts

    async def __call__(self, request: Request) -> Response:
        """Serve `POST /v1/completions` and `GET /health`."""
        if request.method == "GET" and request.url.path == "/health":
            return JSONResponse({"status": "ok"})
        if (request.method, request.url.path) != ("POST", "/v1/completions"):
            return _problem("this server has POST /v1/completions and GET /health", 404)
        try:
            asked = _parse(await request.body())
            return await (self._stream(asked) if asked.stream else self._complete(asked))
        except RefusedError as error:
            return _problem(str(error), error.status)
        except BackPressureError:
            return _problem("too many requests wait; send it again later", 503)
        except RayActorError:
            return _problem(_DIED, 502)

    async def _stream(self, asked: Completion) -> Response:
        """Wait for the first event, on as many replicas as that takes, then stream."""
        for attempt in range(1, self._attempts + 1):
            events = self._engine.remote(asked.prompt, asked.options)
            try:
                first = _accepted(await anext(events))
            except RayActorError:
                if attempt == self._attempts:
                    raise
                continue
            return StreamingResponse(
                _server_sent(first, events),
                media_type="text/event-stream",
                headers=_headers(attempt, first),
            )
        raise AssertionError("there is at least one attempt")

    async def _complete(self, asked: Completion) -> Response:
        """Nothing is sent before the end, so that any death may be followed by another attempt."""
        for attempt in range(1, self._attempts + 1):
            events = self._engine.remote(asked.prompt, asked.options)
            try:
                *pieces, last = [_accepted(event) async for event in events]
            except RayActorError:
                if attempt == self._attempts:
                    raise
                continue
            text = "".join(piece["text"] for piece in pieces)
            usage = {name: last[name] for name in ("prompt_tokens", "completion_tokens")}
            body = _chunk(text, last["finish_reason"]) | {"usage": usage}
            return JSONResponse(body, headers=_headers(attempt, last))
        raise AssertionError("there is at least one attempt")


def _headers(attempt: int, event: dict[str, Any]) -> dict[str, str]:
    return {"x-attempts": str(attempt), "x-replica": event["replica"]}


async def _server_sent(first: dict[str, Any], events: Any) -> AsyncIterator[str]:
    """The events of one request; a client that leaves cancels it."""
    try:
        yield _event(_chunk(first.get("text", ""), first.get("finish_reason")))
        async for event in events:
            _accepted(event)
            yield _event(_chunk(event.get("text", ""), event.get("finish_reason")))
        yield "data: [DONE]\n\n"
    except RayActorError:
        yield _event({"error": {"message": _DIED, "type": "replica_died"}})
    except RefusedError as error:  # logits that are no numbers, say
        yield _event({"error": {"message": str(error), "type": "generation_failed"}})
    finally:
        events.cancel()


def _accepted(event: dict[str, Any]) -> dict[str, Any]:
    if "error" in event:
        raise RefusedError(event["error"], event["status"])
    return event


def _parse(body: bytes) -> Completion:
    """Check a request as far as no bundle is needed for it.

    Raises:
        RefusedError: no JSON object with a prompt, or a field that is not served.
    """
    try:
        given = json.loads(body)
        prompt, stream = given.pop("prompt"), given.pop("stream", False)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise RefusedError("the body must be a JSON object with a prompt") from error
    if not isinstance(prompt, str) or not isinstance(stream, bool):
        raise RefusedError("prompt must be a text, and stream true or false")
    given.pop("model", None)
    unknown = sorted(set(given) - set(_OPTIONS))
    if unknown:
        raise RefusedError(f"not served: {', '.join(unknown)}")
    options = {_OPTIONS[name]: value for name, value in given.items() if value is not None}
    # Chosen here, so that a second attempt gives what the first would have given.
    options.setdefault("seed", secrets.randbits(48))
    return Completion(prompt, options, stream)


def _chunk(text: str, finish_reason: str | None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "finish_reason": finish_reason}
    return {"object": "text_completion", "choices": [choice]}


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"


def _problem(message: str, status: int) -> Response:
    return JSONResponse({"error": {"message": message}}, status_code=status)
