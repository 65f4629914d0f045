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


class ToldToken(TypedDict):
    """A token: the text that it completed, and how it came about."""

    text: str
    kind: Literal["accepted", "recovered", "bonus", "target"]


class ToldRound(TypedDict):
    """What a round proposed, kept and took."""

    num_draft_tokens: int
    num_accepted_tokens: int
    num_emitted_tokens: int
    milliseconds: float


class TimePerToken(TypedDict):
    """Percentiles, in milliseconds."""

    median: float
    p90: float
    p99: float


class Statistics(TypedDict):
    """An output's statistics; docs/embedding.md has their formulas."""

    num_rounds: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_emitted_tokens: int
    acceptance_rate: float
    block_efficiency: float
    acceptance_histogram: list[int]
    ttft_ms: float
    tpot_ms: TimePerToken
    wall_ms: float
    tokens_per_second: float


class Report(TypedDict):
    """What a choice tells about its tokens where `return_token_kinds` is true."""

    tokens: list[ToldToken]
    rounds: list[ToldRound]
    stats: NotRequired[Statistics]


class TextChoice(TypedDict):
    """One output."""

    index: int
    text: str
    logprobs: None
    finish_reason: FinishReason
    spec_compile: NotRequired[Report]


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
    spec_compile: NotRequired[Report]


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
    spec_compile: NotRequired[Report]


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
    spec_compile: NotRequired[Report]


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


class BundleFacts(TypedDict):
    """What was chosen when the bundle was exported, and what the server makes of it."""

    acceptance: str
    num_speculative_tokens: int
    num_drafts: int
    has_chat_template: bool
    max_tokens: int


class ModelCard(TypedDict):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["spec-compile"]
    max_model_len: int
    spec_compile: BundleFacts


class ModelList(TypedDict):
    """The models that are served: one."""

    object: Literal["list"]
    data: list[ModelCard]


class HealthReport(TypedDict):
    """How the server is."""

    status: Literal["ok", "shutting down", "engine failing", "stopped"]
