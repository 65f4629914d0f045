"""OpenAI's response bodies, whole and in chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from spec_compile.runtime.api import GenerationResult
from spec_compile.runtime.row import CANCELLED, CAPACITY, DEADLINE, EOS, LENGTH, STOP
from spec_compile.serving.problems import SERVER, ApiError

_REASONS = {EOS: "stop", STOP: "stop", LENGTH: "length", CAPACITY: "length"}


class Answer:
    """Writes the bodies of one request.

    Args:
        model: its name.
        chat: the form of chat completions; else of text completions.
    """

    def __init__(self, model: str, *, chat: bool) -> None:
        self._chat = chat
        self._kind = "chat.completion" if chat else "text_completion"
        prefix = "chatcmpl" if chat else "cmpl"
        self._head = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, results: Sequence[GenerationResult], usage: dict[str, int]) -> dict[str, Any]:
        """The answer of a request that does not stream."""
        choices = []
        for index, result in enumerate(results):
            text = result.text or ""
            message = {"role": "assistant", "content": text}
            said: dict[str, Any] = {"message": message} if self._chat else {"text": text}
            choices.append(self._choice(index, said, finish_reason(result)))
        return {"object": self._kind, **self._head, "choices": choices, "usage": usage}

    def opening(self, index: int) -> dict[str, Any] | None:
        """The chunk before the first piece of a choice, if this form has one."""
        if not self._chat:
            return None
        delta = {"delta": {"role": "assistant", "content": ""}}
        return self._chunk([self._choice(index, delta, None)])

    def piece(self, index: int, text: str) -> dict[str, Any]:
        """A chunk of text."""
        said: dict[str, Any] = {"delta": {"content": text}} if self._chat else {"text": text}
        return self._chunk([self._choice(index, said, None)])

    def closing(self, index: int, result: GenerationResult) -> dict[str, Any]:
        """The chunk after the last piece of a choice.

        Raises:
            ApiError: the output was cut by the server.
        """
        said: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
        return self._chunk([self._choice(index, said, finish_reason(result))])

    def usage(self, usage: dict[str, int]) -> dict[str, Any]:
        """The chunk after the last choice, for those who asked for it."""
        return {**self._chunk([]), "usage": usage}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._chat else self._kind
        return {"object": kind, **self._head, "choices": choices}

    def _choice(self, index: int, said: dict[str, Any], reason: str | None) -> dict[str, Any]:
        return {"index": index, **said, "logprobs": None, "finish_reason": reason}


def finish_reason(result: GenerationResult) -> str:
    """OpenAI's word for how an output ended.

    Raises:
        ApiError: the server cut it, which OpenAI has no word for.
    """
    if result.finish_reason == DEADLINE:
        raise ApiError(504, "the request took too long", kind=SERVER, code="timeout")
    if result.finish_reason == CANCELLED:
        raise ApiError(503, "the server is shutting down", kind=SERVER, code="unavailable")
    return _REASONS[result.finish_reason]


def usage_of(results: Sequence[GenerationResult], n: int) -> dict[str, int]:
    """Tokens of prompts, each counted once, and of outputs."""
    prompt = sum(result.prompt_length for result in results[::n])
    completion = sum(len(result.token_ids) for result in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
