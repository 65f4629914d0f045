"""The application: routes, and the decoder's life around them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from spec_compile import __version__
from spec_compile.errors import ConfigError
from spec_compile.runtime.async_decoder import AsyncDecoder
from spec_compile.serving.bodies import HealthReport, ModelCard, ModelList
from spec_compile.serving.completions import Completions
from spec_compile.serving.guard import Guard
from spec_compile.serving.metrics import CONTENT_TYPE, Metrics
from spec_compile.serving.openapi import openapi_document
from spec_compile.serving.playground import playground_routes
from spec_compile.serving.problems import ApiError
from spec_compile.serving.protocol import Requests
from spec_compile.serving.readiness import Readiness
from spec_compile.serving.settings import ServerSettings
from spec_compile.serving.wire import to_json


def create_app(
    decoder: AsyncDecoder, settings: ServerSettings, readiness: Readiness | None = None
) -> Starlette:
    """An ASGI application over `decoder`, which it closes at its end.

    Args:
        decoder: of a bundle with a tokenizer.
        settings: limits and names.
        readiness: what `/health/ready` reports.

    Raises:
        ConfigError: the bundle has no tokenizer.
    """
    tokenizer = decoder.decoder.tokenizer
    if tokenizer is None:
        raise ConfigError("a server needs a tokenizer, and this bundle has none")
    metrics = Metrics(decoder.decoder.scheduler, settings.model_name)
    readiness = readiness or Readiness()
    requests = Requests(settings, decoder.manifest)
    completions = Completions(decoder, settings, metrics, requests, readiness)
    pages = _Pages(decoder, settings, metrics, readiness)
    document = openapi_document(
        requests, settings, __version__, has_chat=tokenizer.has_chat_template
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await decoder.generate([0], max_new_tokens=1)  # the first call of a graph is slow
        yield
        await decoder.aclose()

    middleware = [Middleware(Guard, settings=settings, metrics=metrics)]
    if settings.cors_origins:
        cors: dict[str, Any] = {"allow_methods": ["GET", "POST"], "allow_headers": ["*"]}
        middleware.append(
            Middleware(CORSMiddleware, allow_origins=list(settings.cors_origins), **cors)
        )
    app = Starlette(
        routes=[
            *(playground_routes() if settings.playground else ()),
            Route("/v1/completions", completions.text, methods=["POST"]),
            Route("/v1/chat/completions", completions.chat, methods=["POST"]),
            Route("/v1/models", pages.models),
            Route("/v1/models/{name:path}", pages.model),
            Route("/health", pages.ready),
            Route("/health/ready", pages.ready),
            Route("/health/live", pages.live),
            Route("/metrics", pages.metrics),
            Route("/openapi.json", _constant(to_json(document))),
        ],
        middleware=middleware,
        exception_handlers={HTTPException: _http_error, ApiError: _api_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # one address each
    app.state.document = document
    return app


class _Pages:
    """The small endpoints."""

    def __init__(
        self,
        decoder: AsyncDecoder,
        settings: ServerSettings,
        metrics: Metrics,
        readiness: Readiness,
    ) -> None:
        self._decoder, self._settings = decoder, settings
        self._metrics, self._readiness = metrics, readiness
        self._created = int(time.time())

    async def models(self, _: Request) -> Response:
        return _json(ModelList(object="list", data=[self._model()]))

    async def model(self, request: Request) -> Response:
        if request.path_params["name"] != self._settings.model_name:
            raise ApiError(404, "this model does not exist", param="model", code="model_not_found")
        return _json(self._model())

    async def live(self, _: Request) -> Response:
        if not self._is_alive():
            return _json(HealthReport(status="stopped"), 503)
        return _json(HealthReport(status="ok"))

    async def ready(self, _: Request) -> Response:
        if self._readiness.draining:
            return _json(HealthReport(status="shutting down"), 503)
        if self._is_alive() and not await self._readiness.engine_works(self._decoder):
            return _json(HealthReport(status="engine failing"), 503)
        return await self.live(_)

    async def metrics(self, _: Request) -> Response:
        return Response(self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    def _is_alive(self) -> bool:
        return self._decoder.decoder.scheduler.is_running or self._readiness.draining

    def _model(self) -> ModelCard:
        config, tokenizer = self._decoder.manifest.config, self._decoder.decoder.tokenizer
        return {
            "id": self._settings.model_name,
            "object": "model",
            "created": self._created,
            "owned_by": "spec-compile",
            "max_model_len": config.max_length,
            "spec_compile": {
                "acceptance": config.acceptance,
                "num_speculative_tokens": config.num_speculative_tokens,
                "num_drafts": config.num_drafts,
                "has_chat_template": tokenizer is not None and tokenizer.has_chat_template,
                "max_tokens": self._settings.max_tokens,
            },
        }


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return ApiError(error.status_code, str(error.detail), headers=error.headers).response()


def _constant(body: bytes) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def page(_: Request) -> Response:
        return Response(body, media_type="application/json")

    return page


def _json(value: object, status: int = 200) -> Response:
    return Response(to_json(value), status, media_type="application/json")
