"""Serving one completion request, whole or streamed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from spec_compile.errors import SpecCompileError
from spec_compile.runtime.api import GenerationResult
from spec_compile.runtime.async_decoder import AsyncDecoder, AsyncStream
from spec_compile.runtime.shared_decoder import Prepared
from spec_compile.serving.answers import Answer, finish_reason, usage_of
from spec_compile.serving.client import ClientGone, read_body, while_connected
from spec_compile.serving.log import note
from spec_compile.serving.metrics import Metrics
from spec_compile.serving.problems import ApiError, explain, internal, invalid
from spec_compile.serving.protocol import CompletionRequest, read_chat, read_completion
from spec_compile.serving.settings import ServerSettings
from spec_compile.serving.wire import DONE, event, to_json

_LOG = logging.getLogger(__name__)
Streams = Sequence[AsyncStream[str]]


class Completions:
    """The two completion endpoints.

    Args:
        decoder: generates.
        settings: limits.
        metrics: notes what has ended.
    """

    def __init__(self, decoder: AsyncDecoder, settings: ServerSettings, metrics: Metrics) -> None:
        self._decoder, self._settings, self._metrics = decoder, settings, metrics
        self._greedy = not decoder.manifest.config.samples

    async def text(self, request: Request) -> Response:
        """`POST /v1/completions`."""
        body = await read_body(request, self._settings)
        wanted = read_completion(body, self._settings, greedy=self._greedy)
        return await self._serve(request, wanted, Answer(self._settings.model_name, chat=False))

    async def chat(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        body = await read_body(request, self._settings)
        wanted = read_chat(body, self._settings, greedy=self._greedy)
        return await self._serve(request, wanted, Answer(self._settings.model_name, chat=True))

    async def _serve(self, request: Request, wanted: CompletionRequest, answer: Answer) -> Response:
        try:
            prepared = await self._prepare(wanted)
            streams = self._submit(prepared)
        except SpecCompileError as error:
            raise explain(error) from error
        if wanted.stream:
            return _EventResponse(request, self, streams, wanted, answer)
        async with self._closing(request, streams):
            results = await while_connected(request, _results(streams))
            body = answer.whole(results, usage_of(results, wanted.n))
        return Response(to_json(body), media_type="application/json")

    async def _prepare(self, wanted: CompletionRequest) -> Prepared:
        """Check and encode in a thread: a long text takes long."""
        decoder = self._decoder.decoder
        if wanted.messages:
            prepared = await asyncio.to_thread(
                decoder.prepare_chat, wanted.messages, wanted.options
            )
        else:
            prepared = await asyncio.to_thread(
                decoder.prepare, "completions", wanted.prompts, wanted.options
            )
        most = self._settings.max_prompt_tokens
        longest = max(len(prompt) for prompt in prepared.prompts)
        if most is not None and longest > most:
            code = "context_length_exceeded"
            raise invalid(f"the prompt has {longest} tokens, more than {most}", "prompt", code)
        prompts = [prompt for prompt in prepared.prompts for _ in range(wanted.n)]
        return replace(prepared, prompts=prompts, seeds=prepared.options.row_seeds(len(prompts)))

    def _submit(self, prepared: Prepared) -> Streams:
        return self._decoder.stream_each(prepared, self._settings.request_seconds)

    @asynccontextmanager
    async def _closing(self, request: Request, streams: Streams) -> AsyncIterator[None]:
        """Whatever happens, leave nothing running, and note what was done."""
        try:
            yield
        except SpecCompileError as error:
            raise explain(error) from error
        finally:
            for stream in streams:
                await stream.aclose()
            results = [stream.result for stream in streams]
            for result in results:
                self._metrics.observe(result)
            note(
                request,
                prompt_tokens=sum(result.prompt_length for result in results),
                completion_tokens=sum(len(result.token_ids) for result in results),
                finish_reasons=[result.finish_reason for result in results],
            )

    async def send_events(
        self, request: Request, streams: Streams, wanted: CompletionRequest, answer: Answer
    ) -> AsyncGenerator[bytes, None]:
        """Server-sent events of a request, whose errors are events too."""
        try:
            async with self._closing(request, streams):
                async for chunk in _chunks(streams, answer):
                    yield chunk
                results = [stream.result for stream in streams]
                if wanted.include_usage:
                    yield event(answer.usage(usage_of(results, wanted.n)))
        except ApiError as error:
            yield event(error.body())
        yield DONE


class _EventResponse(Response):
    """Sends events as they come and stops when the client leaves."""

    media_type = "text/event-stream"

    def __init__(
        self,
        request: Request,
        completions: Completions,
        streams: Streams,
        wanted: CompletionRequest,
        answer: Answer,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._request = request
        self._events = completions.send_events(request, streams, wanted, answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(self._request, self._send(send))

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        try:
            async for data in self._events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except OSError as error:
            raise ClientGone from error
        finally:
            await self._events.aclose()
        await send({"type": "http.response.body", "body": b""})


async def _results(streams: Streams) -> list[GenerationResult]:
    for stream in streams:
        async for _ in stream:
            pass
    results = [stream.result for stream in streams]
    for result in results:
        finish_reason(result)
    return results


async def _chunks(streams: Streams, answer: Answer) -> AsyncIterator[bytes]:
    """Chunks of all choices, as they come."""
    queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()

    async def forward(index: int, stream: AsyncStream[str]) -> None:
        try:
            if (opening := answer.opening(index)) is not None:
                queue.put_nowait(event(opening))
            async for piece in stream:
                queue.put_nowait(event(answer.piece(index, piece)))
            queue.put_nowait(event(answer.closing(index, stream.result)))
            queue.put_nowait(None)
        except (SpecCompileError, ApiError) as error:
            queue.put_nowait(error)
        except Exception:  # noqa: BLE001 - whoever waits must hear of it
            _LOG.exception("a stream failed")
            queue.put_nowait(internal())

    tasks = [asyncio.create_task(forward(i, stream)) for i, stream in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
