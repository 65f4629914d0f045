"""The OpenAPI document of a server, written from what reads its requests and types its answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from spec_compile.serving.bodies import (
    ChatChunk,
    ChatCompletion,
    ErrorBody,
    HealthReport,
    ModelCard,
    ModelList,
    TextChunk,
    TextCompletion,
)
from spec_compile.serving.json_schema import Components
from spec_compile.serving.kinds import Object, Schema
from spec_compile.serving.protocol import Requests
from spec_compile.serving.settings import ServerSettings

OPENAPI_VERSION = "3.2.0"  # the first that can say what an event of a stream is
_SCHEME = "api_key"
_JSON, _EVENTS, _PLAIN = "application/json", "text/event-stream", "text/plain"
_ERRORS: Mapping[int, str] = MappingProxyType(
    {
        400: "The request cannot be served; `param` names the field.",
        401: "The API key is missing or wrong.",
        404: "There is no such model.",
        408: "The body did not come in in time.",
        413: "The body is too large.",
        415: "The body is not announced as application/json.",
        429: "Too many requests are open, or wait; try again after `Retry-After` seconds.",
        500: "The engine failed, or the server did; its log says more.",
        503: "The server is shutting down, or its engine has stopped.",
        504: "The request took too long.",
    }
)


def openapi_document(
    requests: Requests, settings: ServerSettings, version: str, *, has_chat: bool
) -> Schema:
    """The document that `/openapi.json` gives.

    Args:
        requests: reads the bodies of requests.
        settings: limits; whether a key is asked for.
        version: of the server.
        has_chat: whether the bundle has a chat template.
    """
    writer = _Writer(requests, settings)
    paths = writer.paths()
    if not has_chat:
        del paths["/v1/chat/completions"]
    components: Schema = {"schemas": writer.components.schemas, "responses": writer.errors()}
    components["headers"] = _headers()
    if settings.api_key is not None:
        components["securitySchemes"] = {_SCHEME: {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": OPENAPI_VERSION,
        "info": {
            "title": "spec-compile serve",
            "version": version,
            "description": "A bundle of speculative decoding behind OpenAI's protocol. "
            f"A body has at most {settings.max_body_bytes} bytes.",
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": components,
    }


class _Writer:
    """Writes the paths, and collects what they refer to."""

    def __init__(self, requests: Requests, settings: ServerSettings) -> None:
        self._requests, self._settings = requests, settings
        self.components = Components()

    def paths(self) -> Schema:
        text, chat = self._requests.completion, self._requests.chat
        served = {"type": "string", "enum": [self._settings.model_name]}
        name = {"name": "name", "in": "path", "required": True, "schema": served}
        return {
            "/v1/completions": {
                "post": self._generates("completion", text, TextCompletion, TextChunk)
            },
            "/v1/chat/completions": {
                "post": self._generates("chat completion", chat, ChatCompletion, ChatChunk)
            },
            "/v1/models": {
                "get": self._protected("List the models", self._json(ModelList), (401,))
            },
            "/v1/models/{name}": {
                "parameters": [name],
                "get": self._protected("Describe a model", self._json(ModelCard), (401, 404)),
            },
            "/health": {"get": self._health("Whether new requests are welcome")},
            "/health/ready": {"get": self._health("Whether new requests are welcome")},
            "/health/live": {"get": self._health("Whether the engine's worker lives")},
            "/metrics": {
                "get": _operation(
                    "Metrics for Prometheus", {_PLAIN: {"schema": {"type": "string"}}}
                )
            },
            "/openapi.json": {
                "get": _operation("This document", {_JSON: {"schema": {"type": "object"}}})
            },
        }

    def errors(self) -> Schema:
        schema = self.components.of(ErrorBody)
        return {f"error_{status}": _error(status, about, schema) for status, about in self._told()}

    def _told(self) -> Iterable[tuple[int, str]]:
        return [one for one in _ERRORS.items() if one[0] != 401 or self._settings.api_key]

    def _generates(self, what: str, fields: Object, answer: Any, chunk: Any) -> Schema:
        content = {
            **self._json(answer),
            _EVENTS: {"itemSchema": self._event(chunk)},
        }
        operation = self._protected(f"Create a {what}", content, _ERRORS)
        name = what.title().replace(" ", "") + "Request"
        body = self.components.add(name, fields.schema())
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": body}}}
        operation["responses"]["200"]["description"] = (
            "The outputs; as server-sent events where `stream` is true. An error after the first "
            "event is an event too. The last event is `[DONE]`."
        )
        return operation

    def _event(self, chunk: Any) -> Schema:
        chunk_or_error = {"anyOf": [self.components.of(chunk), self.components.of(ErrorBody)]}
        data = {"type": "string", "contentMediaType": _JSON, "contentSchema": chunk_or_error}
        end = {"type": "string", "enum": ["[DONE]"]}
        return {
            "type": "object",
            "properties": {"data": {"anyOf": [end, data]}},
            "required": ["data"],
        }

    def _protected(self, about: str, content: Schema, errors: Iterable[int]) -> Schema:
        operation = _operation(about, content)
        told = {status for status, _ in self._told()}
        for status in errors:
            if status in told:
                operation["responses"][str(status)] = {
                    "$ref": f"#/components/responses/error_{status}"
                }
        if self._settings.api_key is not None:
            operation["security"] = [{_SCHEME: []}]
        return operation

    def _health(self, about: str) -> Schema:
        operation = _operation(about, self._json(HealthReport))
        operation["responses"]["503"] = _response("No.", self._json(HealthReport))
        return operation

    def _json(self, hint: Any) -> Schema:
        return {_JSON: {"schema": self.components.of(hint)}}


def _operation(about: str, content: Schema) -> Schema:
    return {"summary": about, "responses": {"200": _response("Yes.", content)}}


def _response(about: str, content: Schema, *more_headers: str) -> Schema:
    names = ("X-Request-Id", *more_headers)
    headers = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
    return {"description": about, "headers": headers, "content": content}


def _error(status: int, about: str, schema: Schema) -> Schema:
    more = {401: ("WWW-Authenticate",), 429: ("Retry-After",), 503: ("Retry-After",)}
    return _response(about, {_JSON: {"schema": schema}}, *more.get(status, ()))


def _headers() -> Schema:
    return {
        "X-Request-Id": {
            "description": "Names the request in the server's log.",
            "required": True,
            "schema": {"type": "string"},
        },
        "Retry-After": {"required": True, "schema": {"type": "string"}},
        "WWW-Authenticate": {"required": True, "schema": {"type": "string"}},
    }
