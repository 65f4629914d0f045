"""OpenAI's request bodies: every field that is served, and every one that is refused by name.

The tables of this file are the only list of fields: bodies are read by them, and the server's
OpenAPI document is written from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from spec_compile.config import LONGEST_NGRAM
from spec_compile.manifest import Manifest
from spec_compile.runtime.requests import (
    LARGEST_FLOAT,
    MAX_TOP_K,
    GenerationOptions,
    Options,
)
from spec_compile.runtime.tokenizer import Message
from spec_compile.serving.kinds import (
    Field,
    Flag,
    Kind,
    ListOf,
    Nothing,
    Object,
    OneOf,
    Real,
    Schema,
    Text,
    TextOr,
    Whole,
)
from spec_compile.serving.problems import TOO_LONG, ApiError, invalid, shown
from spec_compile.serving.settings import ServerSettings

# Fields that are not served, and the values that ask for nothing.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "logprobs": (False,),
        "top_logprobs": (0,),
        "echo": (False,),
        "best_of": (1,),
        "suffix": ("",),
        "frequency_penalty": (0,),
        "presence_penalty": (0,),
        "logit_bias": ({},),
        "response_format": ({"type": "text"},),
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "functions": ([],),
        "function_call": ("none",),
        "store": (False,),
        "modalities": (["text"],),
    }
)
_ROLES = ("system", "developer", "user", "assistant", "tool")
_DEFAULT_MAX_TOKENS = 16  # of OpenAI's text completions
_MAX_STOPS, _LONGEST_STOP = 16, 256
_MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class CompletionRequest:
    """A request body that was understood.

    Args:
        prompts: texts or token ids; empty for a conversation.
        messages: the conversation; empty for prompts.
        options: for the runtime.
        n: outputs per prompt.
        stream: whether pieces are sent as they come.
        include_usage: whether a stream ends with its usage.
        token_kinds: whether the answer tells how each token came about; see `TokenReport`.
    """

    prompts: Sequence[str | list[int]]
    messages: Sequence[Message]
    options: Options
    n: int
    stream: bool
    include_usage: bool
    token_kinds: bool


class Requests:
    """Reads the bodies of one server's requests.

    Args:
        settings: limits.
        manifest: of the bundle, whose vocabulary, length and rule set limits too.
    """

    def __init__(self, settings: ServerSettings, manifest: Manifest) -> None:
        self._settings = settings
        longest = manifest.config.max_length - 1
        if settings.max_prompt_tokens is not None:
            longest = min(longest, settings.max_prompt_tokens)
        prompt = _Prompt(longest, Whole(0, manifest.vocab_size - 1), settings.max_choices)
        self._options = {
            **_options(greedy=not manifest.config.samples),
            **_drafting(manifest),
        }
        common = {
            "model": Field(_Model(settings.model_name), "The model's name.", required=True),
            **self._options,
            **_answer_fields(settings),
        }
        budget = Whole(1, settings.max_tokens)
        most = min(_DEFAULT_MAX_TOKENS, settings.max_tokens)
        about = "Most tokens of an answer."
        self.completion = Object(
            {
                "prompt": Field(prompt, "Texts or token ids, one or a list.", required=True),
                "max_tokens": Field(budget, about, default=most),
                **common,
                **_neutral(),
            }
        )
        self.chat = Object(
            {
                "messages": Field(ListOf(_MESSAGE, 1), "Oldest first.", required=True),
                "max_tokens": Field(budget, f"{about} Default: as many as the server allows."),
                "max_completion_tokens": Field(budget, "Newer name of max_tokens; give one."),
                **common,
                **_neutral(),
            }
        )

    def read_completion(self, body: object) -> CompletionRequest:
        """The body of `/v1/completions`.

        Raises:
            ApiError: a field that is missing, wrong or not served.
        """
        read = self.completion.read("", body)
        return self._request(read, read["prompt"], (), read["max_tokens"])

    def read_chat(self, body: object) -> CompletionRequest:
        """The body of `/v1/chat/completions`; errors as `read_completion`."""
        read = self.chat.read("", body)
        if "max_tokens" in read and "max_completion_tokens" in read:
            raise invalid("give max_tokens or max_completion_tokens, not both", "max_tokens")
        most = read.get("max_completion_tokens", read.get("max_tokens", self._settings.max_tokens))
        return self._request(read, (), [_message(one) for one in read["messages"]], most)

    def _request(
        self,
        read: Mapping[str, Any],
        prompts: Sequence[str | list[int]],
        messages: Sequence[Message],
        max_tokens: int,
    ) -> CompletionRequest:
        most, n = self._settings.max_choices, read["n"]
        if n * max(len(prompts), 1) > most:
            raise invalid(f"prompts times n must be at most {most}", "n")
        if "stream_options" in read and not read["stream"]:
            raise invalid("stream_options needs stream", "stream_options")
        options = {name: read[name] for name in self._options if name in read}
        options["max_new_tokens"] = max_tokens
        return CompletionRequest(
            prompts=prompts,
            messages=messages,
            options=options,  # type: ignore[arg-type]
            n=n,
            stream=read["stream"],
            include_usage=read.get("stream_options", {}).get("include_usage", False),
            token_kinds=read["return_token_kinds"],
        )


def _options(*, greedy: bool) -> dict[str, Field]:
    """Fields that are options of the runtime, by the same names."""
    warmth = Real(0.0, 0.0 if greedy else LARGEST_FLOAT)
    stop = Text(1, _LONGEST_STOP)
    usual = GenerationOptions()
    return {
        "temperature": Field(warmth, "0 is greedy.", default=0.0 if greedy else 1.0),
        "top_p": Field(
            Real(0.0, 1.0, above=True), "Keep this mass of the likeliest.", default=usual.top_p
        ),
        "top_k": Field(Whole(0, MAX_TOP_K), "Keep the k likeliest; 0 is off.", default=usual.top_k),
        "min_p": Field(
            Real(0.0, 1.0, below=True), "Keep tokens of this part of the likeliest's probability."
        ),
        "seed": Field(Whole(0, _MAX_SEED), "Choice i draws from seed + i; fresh if not given."),
        "stop": Field(TextOr(stop, ListOf(stop, 0, _MAX_STOPS)), "Ends the output before it."),
        "ignore_eos": Field(Flag(), "Go on after the end of text."),
    }


def _drafting(manifest: Manifest) -> dict[str, Field]:
    """Options of the runtime that the bundle has a use for."""
    fields = {"speculative": Field(Flag(), "False decodes with the target model alone.")}
    verify = manifest.graphs.get("verify")
    if verify is not None and verify.takes_any_length:
        about = "Draft as many tokens a round as measured costs say; needs speculative."
        fields["adaptive"] = Field(Flag(), about)
    if manifest.config.lookup_sizes is not None:
        size = Whole(1, LONGEST_NGRAM)
        fields["prompt_lookup_min"] = Field(size, "Fewest last tokens that are looked up.")
        fields["prompt_lookup_max"] = Field(size, "Most of them.")
    return fields


def _answer_fields(settings: ServerSettings) -> dict[str, Field]:
    usage = Field(Flag(), "Whether a chunk with the usage is the last.", default=False)
    return {
        "n": Field(Whole(1, settings.max_choices), "Outputs of each prompt.", default=1),
        "stream": Field(Flag(), "Whether pieces are sent as they come.", default=False),
        "stream_options": Field(Object({"include_usage": usage}), "Needs stream."),
        "return_token_kinds": Field(
            Flag(), "Whether choices tell how each token came about.", default=False
        ),
        "user": Field(Text(), "Not used."),
    }


def _neutral() -> dict[str, Field]:
    about = "Not served; these values ask for nothing."
    return {name: Field(Nothing(values), about) for name, values in _NEUTRAL.items()}


_PART = Object(
    {
        "type": Field(OneOf(("text",)), "Text alone is served.", required=True),
        "text": Field(Text(), "The text.", required=True),
    }
)
_MESSAGE: Kind = Object(
    {
        "role": Field(OneOf(_ROLES), "Who speaks.", required=True),
        "content": Field(TextOr(Text(), ListOf(_PART)), "Text, or parts of it.", required=True),
        "name": Field(Text(), "Who speaks, more precisely."),
    },
    idle=(None, []),
)


def _message(read: Mapping[str, Any]) -> Message:
    content = read["content"]
    if not isinstance(content, str):
        content = "".join(part["text"] for part in content)
    return {**read, "content": content}


@dataclass(frozen=True)
class _Model:
    name: str

    def read(self, where: str, value: Any) -> str:
        if value != self.name:
            message = f"the model {shown(value)} does not exist"
            raise ApiError(404, message, param=where, code="model_not_found")
        return self.name

    def schema(self) -> Schema:
        return {"type": "string", "enum": [self.name]}


@dataclass(frozen=True)
class _Prompt:
    """Prompts, always as a list; the runtime counts the tokens of texts."""

    longest: int
    token: Whole
    most: int

    def read(self, where: str, value: Any) -> list[Any]:
        if isinstance(value, str):
            return [Text(1).read(where, value)]
        if not isinstance(value, list) or not value:
            raise invalid(f"{where} must be a string, token ids, or a list of either", where)
        if not isinstance(value[0], str | list):
            return [self._ids(where, value)]
        if len(value) > self.most:
            raise invalid(f"prompts times n must be at most {self.most}", "n")
        read_one = Text(1).read if isinstance(value[0], str) else self._ids
        return [read_one(f"{where}[{place}]", one) for place, one in enumerate(value)]

    def schema(self) -> Schema:
        text, ids = Text(1), ListOf(self.token, 1, self.longest)
        kinds = (text, ids, ListOf(text, 1, self.most), ListOf(ids, 1, self.most))
        return {"anyOf": [kind.schema() for kind in kinds]}

    def _ids(self, where: str, value: Any) -> list[int]:
        if isinstance(value, list) and len(value) > self.longest:
            message = f"{where} has {len(value)} tokens, more than {self.longest}"
            raise invalid(message, where, TOO_LONG)
        return ListOf(self.token, 1).read(where, value)
