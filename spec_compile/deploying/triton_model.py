"""Python backend of NVIDIA Triton Inference Server: requests share a bundle's engine.

Triton starts one process for this file and calls `TritonPythonModel`. Needs spec-compile in that
process's Python, and neither torch nor anything else of the compiler.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton

from spec_compile import AsyncDecoder, AsyncStream
from spec_compile.errors import (
    BackendError,
    ClosedError,
    ConfigError,
    GenerationError,
    QueueFullError,
)

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.05  # Triton tells of a client that left only when it is asked
_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "max_new_tokens": int,
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "seed": int,
    "ignore_eos": bool,
    "speculative": bool,
    "chat": bool,
}


@dataclass(frozen=True)
class Asked:
    """A request as plain values."""

    prompt: str | list[int]
    options: dict[str, Any]
    piecewise: bool


class TritonPythonModel:
    """The model: one event loop in a thread of its own serves every request."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the bundle beside this file; what the configuration sets, it sets."""
        _check_numpy()
        given = json.loads(args["model_config"])["parameters"]
        settings = {name: json.loads(entry["string_value"]) for name, entry in given.items()}
        self._timeout: float | None = settings.pop("request_seconds", None)
        folder = Path(args["model_repository"], args["model_version"], "bundle")
        self._decoder = AsyncDecoder.load(folder, **settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._open: set[asyncio.Task[None]] = set()

    def execute(self, requests: list[Any]) -> None:
        """Take requests; their responses come from the loop, in their own time."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                asked = _read(request)
            except ValueError as error:
                _fail(sender, str(error), triton.TritonError.INVALID_ARG)
            else:
                self._loop.call_soon_threadsafe(self._begin, asked, sender)

    def finalize(self) -> None:
        """Finish what runs, then end."""
        asyncio.run_coroutine_threadsafe(self._drain(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _drain(self) -> None:
        await self._decoder.aclose(drain=True)
        await asyncio.gather(*self._open)

    def _begin(self, asked: Asked, sender: Any) -> None:
        task = self._loop.create_task(self._serve(asked, sender))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, asked: Asked, sender: Any) -> None:
        """Answer one request; whatever happens, its last response is sent."""
        try:
            await self._answer(asked, sender)
        except (QueueFullError, ClosedError) as error:
            _fail(sender, str(error), triton.TritonError.UNAVAILABLE)
        except (ConfigError, GenerationError) as error:
            _fail(sender, str(error), triton.TritonError.INVALID_ARG)
        except BackendError as error:
            _LOG.error("the engine failed: %s", error)
            _fail(sender, "the engine failed", triton.TritonError.INTERNAL)
        except Exception:  # noqa: BLE001  (else the client would wait for ever)
            _LOG.exception("a request failed")
            _fail(sender, "internal error; the server's log says more", triton.TritonError.INTERNAL)

    async def _answer(self, asked: Asked, sender: Any) -> None:
        stream = await self._stream(asked)
        watch = self._loop.create_task(_watch(sender, stream))
        sent = 0
        try:
            async for piece in stream:
                if asked.piecewise:
                    fresh = stream.ticket.row.token_ids[sent:]
                    sender.send(_response(piece if isinstance(piece, str) else "", fresh, stream))
                    sent += len(fresh)
        finally:
            watch.cancel()
        text = "" if asked.piecewise else stream.ticket.row.text or ""
        last = _response(text, stream.ticket.row.token_ids[sent:], stream)
        sender.send(last, flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    async def _stream(self, asked: Asked) -> AsyncStream[str] | AsyncStream[int]:
        service, timeout = self._decoder, self._timeout
        if service.decoder.tokenizer is None:
            return await service.stream_tokens(asked.prompt, timeout=timeout, **asked.options)
        return await service.stream(asked.prompt, timeout=timeout, **asked.options)


def _check_numpy() -> None:
    """Refuse a server built before NumPy 2: it would read every number of an input as the first.

    Raises:
        RuntimeError: that is so.
    """
    sent = np.arange(3)
    inside = triton.Tensor("sent", sent).to_dlpack()
    if triton.Tensor.from_dlpack("received", inside).as_numpy().tolist() != sent.tolist():
        raise RuntimeError(
            f"this Triton's Python backend was not built for NumPy {np.__version__}; "
            "take a newer Triton"
        )


async def _watch(sender: Any, stream: AsyncStream[Any]) -> None:
    """Cancel the request when its client has."""
    while not sender.is_cancelled():
        await asyncio.sleep(_POLL_SECONDS)
    stream.ticket.row.cancel()


def _read(request: Any) -> Asked:
    """The inputs of a request.

    Raises:
        ValueError: not exactly one prompt, a parameter, or bytes that are no text.
    """
    unknown = sorted(json.loads(request.parameters() or "{}"))
    if unknown:
        raise ValueError(f"unknown: {', '.join(unknown)}")
    given = {tensor.name(): tensor.as_numpy().reshape(-1).tolist() for tensor in request.inputs()}
    prompts = [name for name in ("text_input", "input_ids") if name in given]
    if len(prompts) != 1:
        raise ValueError("give one of text_input and input_ids")
    ids = given.get("input_ids")
    prompt = _text("text_input", given["text_input"][0]) if ids is None else ids
    options = {
        name: convert(given[name][0]) for name, convert in _CONVERSIONS.items() if name in given
    }
    if "stop" in given:
        options["stop"] = [_text("stop", raw) for raw in given["stop"]]
    return Asked(prompt, options, bool(given.get("stream", [True])[0]))


def _text(name: str, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8 text") from error


def _response(text: str, token_ids: list[int], stream: AsyncStream[Any]) -> Any:
    """What is new, and how far the request has come."""
    outputs = {
        "text_output": np.array([text.encode()], dtype=object),
        "output_ids": np.array(token_ids, dtype=np.int64),
        "finish_reason": np.array([stream.ticket.row.finish_reason.encode()], dtype=object),
    }
    return triton.InferenceResponse([triton.Tensor(*output) for output in outputs.items()])


def _fail(sender: Any, message: str, code: Any) -> None:
    response = triton.InferenceResponse(error=triton.TritonError(message, code))
    sender.send(response, flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
