"""The bodies that the server sends, field by field; the OpenAPI document is written from them."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

FinishReason = Literal["stop", "length"]


class Usage(TypedDict):
    """Tokens of a request: of its prompts, each counted once, and of its outputs."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Head(TypedDict):
    """What every answer and every chunk of one request begins with."""

    id: str
    created: int
    model: str


class TextChoice(TypedDict):
    """One output."""

    index: int
    text: str
    logprobs: None
    finish_reason: FinishReason


class TextCompletion(Head):
    """The answer of a text completion."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: Usage


class TextPiece(TypedDict):
    """Text of one output; the last piece of it has a reason."""

    index: int
    text: str
    logprobs: None
    finish_reason: FinishReason | None


class TextChunk(Head):
    """An event of a streamed text completion."""

    object: Literal["text_completion"]
    choices: list[TextPiece]
    usage: NotRequired[Usage]


class ChatMessage(TypedDict):
    """What the model says."""

    role: Literal["assistant"]
    content: str


class ChatChoice(TypedDict):
    """One output."""

    index: int
    message: ChatMessage
    logprobs: None
    finish_reason: FinishReason


class ChatCompletion(Head):
    """The answer of a chat completion."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(TypedDict, total=False):
    """What a piece adds to a message."""

    role: Literal["assistant"]
    content: str


class ChatPiece(TypedDict):
    """An addition to one output; the last of it has a reason."""

    index: int
    delta: ChatDelta
    logprobs: None
    finish_reason: FinishReason | None


class ChatChunk(Head):
    """An event of a streamed chat completion."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatPiece]
    usage: NotRequired[Usage]


class ErrorDetail(TypedDict):
    """What went wrong: for people, of which type, which field, and for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """Every answer that is no success."""

    error: ErrorDetail


class ModelCard(TypedDict):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["spec-compile"]
    max_model_len: int


class ModelList(TypedDict):
    """The models that are served: one."""

    object: Literal["list"]
    data: list[ModelCard]


class HealthReport(TypedDict):
    """How the server is."""

    status: Literal["ok", "shutting down", "engine failing", "stopped"]
