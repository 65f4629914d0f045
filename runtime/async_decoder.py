"""`AsyncDecoder`: one scheduler behind asyncio; waiting costs no thread."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, Unpack, cast, overload

from numpy.typing import NDArray

from spec_compile.errors import GenerationError
from spec_compile.manifest import Manifest
from spec_compile.runtime.api import GenerationResult, Prompt, is_batch, result_of
from spec_compile.runtime.requests import Options
from spec_compile.runtime.row import Row
from spec_compile.runtime.scheduler import MAX_QUEUE, PREFILL_CHUNK
from spec_compile.runtime.shared_decoder import Prepared, SharedDecoder
from spec_compile.runtime.ticket import Ticket
from spec_compile.runtime.tokenizer import Message

Piece = TypeVar("Piece", str, int)


class AsyncStream(Generic[Piece]):
    """An output on its way: `async for` its pieces; `aclose`, or leaving an `async with`, cancels.

    One task reads a stream; a task that is cancelled while it waits for a piece cancels it.

    Args:
        ticket: the request.
        changed: set after each change of it.
        read: the pieces of a row since the last call.
    """

    def __init__(
        self, ticket: Ticket, changed: asyncio.Event, read: Callable[[Row], Sequence[Piece]]
    ) -> None:
        self.ticket, self._changed = ticket, changed
        self._read: Callable[[Row], Sequence[Piece]] = read
        self._pieces: deque[Piece] = deque()
        self._closed = False

    def __aiter__(self) -> AsyncStream[Piece]:
        return self

    async def __anext__(self) -> Piece:
        while not self._closed:
            done = self.ticket.done  # before reading: what is read after it is all there is
            self._pieces.extend(self._read(self.ticket.row))
            if self._pieces:
                return self._pieces.popleft()
            if done:
                self.ticket.raise_error()
                break
            await _wait(self._changed, [self.ticket])
        raise StopAsyncIteration

    async def __aenter__(self) -> AsyncStream[Piece]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Compute nothing more; `result` keeps what there is."""
        self._closed = True
        self.ticket.row.cancel()

    @property
    def result(self) -> GenerationResult:
        """What has been generated so far."""
        return _result(self.ticket)


class AsyncDecoder:
    """Generates from a bundle inside an event loop; requests share the engine.

    Every method that generates takes the keyword options of `GenerationOptions`, and `timeout`,
    the seconds after which a request ends with the reason `deadline`. Cancelling the task that
    waits for a request cancels the request.

    Args:
        decoder: what it stands on; blocking code may use it at the same time.
    """

    def __init__(self, decoder: SharedDecoder) -> None:
        self.decoder = decoder

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        num_slots: int | None = None,
        max_queue: int = MAX_QUEUE,
        prefill_chunk: int = PREFILL_CHUNK,
        num_threads: int | None = None,
        verify_hash: bool = True,
        allow_native_code: bool | None = None,
    ) -> AsyncDecoder:
        """Open a bundle and start the worker; arguments and errors as `SharedDecoder.load`."""
        return cls(
            SharedDecoder.load(
                path,
                num_slots=num_slots,
                max_queue=max_queue,
                prefill_chunk=prefill_chunk,
                num_threads=num_threads,
                verify_hash=verify_hash,
                allow_native_code=allow_native_code,
            )
        )

    @property
    def manifest(self) -> Manifest:
        """The bundle's contract."""
        return self.decoder.manifest

    async def __aenter__(self) -> AsyncDecoder:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self, *, drain: bool = False) -> None:
        """Take no more requests and end the worker; `drain` finishes what was submitted."""
        await asyncio.to_thread(self.decoder.close, drain=drain)

    @overload
    async def generate(
        self,
        prompt: list[str] | list[list[int]] | list[NDArray[Any]],
        *,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> list[GenerationResult]: ...
    @overload
    async def generate(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> GenerationResult: ...
    async def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> GenerationResult | list[GenerationResult]:
        """Generate to the end.

        Args:
            prompt: a text or its token ids, or a list of either, which are served side by side.
            timeout: seconds until it ends with the reason `deadline`; None never.
            options: see `GenerationOptions`.

        Raises:
            QueueFullError: too many requests wait already.
            ClosedError: the decoder is closed.
            GenerationError: a prompt that cannot be served, or logits that are not numbers.
            ConfigError: an option's value cannot be used.
            TypeError: an option that does not exist.
        """
        if is_batch(prompt):
            return await self._finish("generate", cast(Sequence[Prompt], prompt), timeout, options)
        return (await self._finish("generate", [cast(Prompt, prompt)], timeout, options))[0]

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> GenerationResult:
        """Answer a conversation through the bundle's chat template; raises as `generate`."""
        prepared = await asyncio.to_thread(self.decoder.prepare_chat, messages, options)
        return (await self._run(prepared, timeout))[0]

    async def stream(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> AsyncStream[str]:
        """Generate text piece by piece; raises as `generate`, also without a tokenizer."""
        if self.decoder.tokenizer is None:
            raise GenerationError("this bundle has no tokenizer; use stream_tokens for token ids")
        prepared = await self._prepare_one("stream", prompt, options)
        return self.stream_each(prepared, timeout)[0]

    async def stream_tokens(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> AsyncStream[int]:
        """Generate token id by token id; raises as `generate`."""
        prepared = await self._prepare_one("stream_tokens", prompt, options)
        return AsyncStream(*self._submit_one(prepared, timeout), _TokenReader())

    def stream_each(
        self, prepared: Prepared, timeout: float | None = None
    ) -> list[AsyncStream[str]]:
        """A text stream for each request that `SharedDecoder.prepare` or `prepare_chat` gave.

        Raises:
            QueueFullError: too many requests wait already; none of these was queued then.
            ClosedError: the decoder is closed.
        """
        streams: list[AsyncStream[str]] = []
        try:
            for prompt, seed in zip(prepared.prompts, prepared.seeds, strict=True):
                one = Prepared([prompt], prepared.options, [seed])
                streams.append(AsyncStream(*self._submit_one(one, timeout), _texts))
        except GenerationError:
            _cancel([stream.ticket for stream in streams])
            raise
        return streams

    async def _prepare_one(self, method: str, prompt: Prompt, options: Options) -> Prepared:
        if is_batch(prompt):
            raise GenerationError(f"{method} takes one prompt; use generate for a list")
        # Encoding a long text takes long.
        return await asyncio.to_thread(self.decoder.prepare, method, [prompt], options)

    async def _finish(
        self, method: str, prompts: Sequence[Prompt], timeout: float | None, options: Options
    ) -> list[GenerationResult]:
        prepared = await asyncio.to_thread(self.decoder.prepare, method, prompts, options)
        return await self._run(prepared, timeout)

    async def _run(self, prepared: Prepared, timeout: float | None) -> list[GenerationResult]:
        changed = asyncio.Event()
        listener = _setter(changed)
        tickets = self.decoder.submit(prepared, timeout=timeout, listener=listener)
        while not all(ticket.done for ticket in tickets):
            await _wait(changed, tickets)
            for ticket in tickets:
                if ticket.error is not None:
                    _cancel(tickets)
                    raise ticket.error
        return [_result(ticket) for ticket in tickets]

    def _submit_one(
        self, prepared: Prepared, timeout: float | None
    ) -> tuple[Ticket, asyncio.Event]:
        changed = asyncio.Event()
        listener = _setter(changed)
        (ticket,) = self.decoder.submit(prepared, timeout=timeout, listener=listener)
        return ticket, changed


class _TokenReader:
    """The tokens of a row, each once."""

    def __init__(self) -> None:
        self._num_read = 0

    def __call__(self, row: Row) -> Sequence[int]:
        fresh = row.token_ids[self._num_read :]
        self._num_read += len(fresh)
        return fresh


def _texts(row: Row) -> Sequence[str]:
    text = row.read_text()
    return [text] if text else []


def _setter(event: asyncio.Event) -> Callable[[], None]:
    """What a worker calls to set an event of the running loop."""
    loop = asyncio.get_running_loop()

    def notify() -> None:
        try:
            loop.call_soon_threadsafe(event.set)
        except RuntimeError:  # the loop has been closed: nobody waits any more
            return

    return notify


async def _wait(changed: asyncio.Event, tickets: Sequence[Ticket]) -> None:
    try:
        await changed.wait()
        changed.clear()
    except BaseException:  # the task is cancelled, and its requests with it
        _cancel(tickets)
        raise


def _cancel(tickets: Sequence[Ticket]) -> None:
    for ticket in tickets:
        ticket.row.cancel()


def _result(ticket: Ticket) -> GenerationResult:
    return result_of(ticket.row, ticket.seed, len(ticket.prompt))
