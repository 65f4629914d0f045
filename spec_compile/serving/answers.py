"""OpenAI's response bodies, whole and in chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from spec_compile.runtime.api import GenerationResult
from spec_compile.runtime.row import CANCELLED, CAPACITY, DEADLINE, EOS, LENGTH, STOP
from spec_compile.serving.bodies import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatDelta,
    ChatPiece,
    FinishReason,
    Head,
    TextChoice,
    TextChunk,
    TextCompletion,
    TextPiece,
    Usage,
)
from spec_compile.serving.problems import SERVER, ApiError

Chunk = TextChunk | ChatChunk
_REASONS: dict[str, FinishReason] = {
    EOS: "stop",
    STOP: "stop",
    LENGTH: "length",
    CAPACITY: "length",
}


class Answer:
    """Writes the bodies of one request.

    Args:
        model: its name.
        chat: the form of chat completions; else of text completions.
    """

    def __init__(self, model: str, *, chat: bool) -> None:
        self._chat = chat
        prefix = "chatcmpl" if chat else "cmpl"
        self._head = Head(
            id=f"{prefix}-{secrets.token_hex(12)}", created=int(time.time()), model=model
        )

    def whole(
        self, results: Sequence[GenerationResult], usage: Usage
    ) -> TextCompletion | ChatCompletion:
        """The answer of a request that does not stream.

        Raises:
            ApiError: an output was cut by the server.
        """
        if self._chat:
            choices = [_chat_choice(index, result) for index, result in enumerate(results)]
            return {"object": "chat.completion", **self._head, "choices": choices, "usage": usage}
        texts = [_text_choice(index, result) for index, result in enumerate(results)]
        return {"object": "text_completion", **self._head, "choices": texts, "usage": usage}

    def opening(self, index: int) -> Chunk | None:
        """The chunk before the first piece of a choice, if this form has one."""
        if not self._chat:
            return None
        return self._chat_chunk(index, {"role": "assistant", "content": ""}, None)

    def piece(self, index: int, text: str) -> Chunk:
        """A chunk of text."""
        if self._chat:
            return self._chat_chunk(index, {"content": text}, None)
        return self._text_chunk(index, text, None)

    def closing(self, index: int, result: GenerationResult) -> Chunk:
        """The chunk after the last piece of a choice.

        Raises:
            ApiError: the output was cut by the server.
        """
        reason = finish_reason(result)
        if self._chat:
            return self._chat_chunk(index, {}, reason)
        return self._text_chunk(index, "", reason)

    def usage(self, usage: Usage) -> Chunk:
        """The chunk after the last choice, for those who asked for it."""
        chunk = self._chat_chunks([]) if self._chat else self._text_chunks([])
        chunk["usage"] = usage
        return chunk

    def _chat_chunk(self, index: int, delta: ChatDelta, reason: FinishReason | None) -> ChatChunk:
        piece = ChatPiece(index=index, delta=delta, logprobs=None, finish_reason=reason)
        return self._chat_chunks([piece])

    def _text_chunk(self, index: int, text: str, reason: FinishReason | None) -> TextChunk:
        piece = TextPiece(index=index, text=text, logprobs=None, finish_reason=reason)
        return self._text_chunks([piece])

    def _chat_chunks(self, pieces: list[ChatPiece]) -> ChatChunk:
        return {
            "object": "chat.completion.chunk",
            "id": self._head["id"],
            "created": self._head["created"],
            "model": self._head["model"],
            "choices": pieces,
        }

    def _text_chunks(self, pieces: list[TextPiece]) -> TextChunk:
        return {
            "object": "text_completion",
            "id": self._head["id"],
            "created": self._head["created"],
            "model": self._head["model"],
            "choices": pieces,
        }


def _chat_choice(index: int, result: GenerationResult) -> ChatChoice:
    return {
        "index": index,
        "message": {"role": "assistant", "content": result.text or ""},
        "logprobs": None,
        "finish_reason": finish_reason(result),
    }


def _text_choice(index: int, result: GenerationResult) -> TextChoice:
    return {
        "index": index,
        "text": result.text or "",
        "logprobs": None,
        "finish_reason": finish_reason(result),
    }


def finish_reason(result: GenerationResult) -> FinishReason:
    """OpenAI's word for how an output ended.

    Raises:
        ApiError: the server cut it, which OpenAI has no word for.
    """
    if result.finish_reason == DEADLINE:
        raise ApiError(504, "the request took too long", kind=SERVER, code="timeout")
    if result.finish_reason == CANCELLED:
        raise ApiError(503, "the server is shutting down", kind=SERVER, code="unavailable")
    return _REASONS[result.finish_reason]


def usage_of(results: Sequence[GenerationResult], n: int) -> Usage:
    """Tokens of prompts, each counted once, and of outputs."""
    prompt = sum(result.prompt_length for result in results[::n])
    completion = sum(len(result.token_ids) for result in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
