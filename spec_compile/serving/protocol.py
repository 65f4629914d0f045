"""OpenAI's request bodies: fields that are served, fields that are refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from spec_compile.runtime.requests import Options
from spec_compile.runtime.tokenizer import Message
from spec_compile.serving.problems import ApiError, invalid, shown
from spec_compile.serving.settings import ServerSettings

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "stop", "ignore_eos")
_DRAFTING = ("speculative", "adaptive", "prompt_lookup_min", "prompt_lookup_max")
_SHARED = frozenset(
    {*_SAMPLING, *_DRAFTING, "model", "n", "stream", "stream_options", "max_tokens", "user"}
)
COMPLETION_FIELDS = _SHARED | {"prompt"}
CHAT_FIELDS = _SHARED | {"messages", "max_completion_tokens"}
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
_MAX_STOPS = 16


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
    """

    prompts: Sequence[str | list[int]]
    messages: Sequence[Message]
    options: Options
    n: int
    stream: bool
    include_usage: bool


def read_completion(
    body: Mapping[str, Any], settings: ServerSettings, *, greedy: bool
) -> CompletionRequest:
    """The body of `/v1/completions`.

    Args:
        body: its fields.
        settings: limits.
        greedy: whether the bundle can do nothing else, which makes temperature 0 the default.

    Raises:
        ApiError: a field that is missing, wrong or not served.
    """
    body = _known(body, COMPLETION_FIELDS)
    prompts = _prompts(body.get("prompt"))
    return _request(body, settings, greedy, prompts, (), _DEFAULT_MAX_TOKENS)


def read_chat(
    body: Mapping[str, Any], settings: ServerSettings, *, greedy: bool
) -> CompletionRequest:
    """The body of `/v1/chat/completions`; arguments and errors as `read_completion`."""
    body = dict(_known(body, CHAT_FIELDS))
    if "max_completion_tokens" in body:
        if "max_tokens" in body:
            raise invalid("give max_tokens or max_completion_tokens, not both", "max_tokens")
        body["max_tokens"] = body.pop("max_completion_tokens")
    return _request(body, settings, greedy, (), _messages(body.get("messages")), None)


def _known(body: Mapping[str, Any], names: frozenset[str]) -> Mapping[str, Any]:
    """The fields that are given; null means not given, as OpenAI's clients send it."""
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in given.items():
        if name in names:
            continue
        if any(type(value) is type(one) and value == one for one in _neutral(name)):
            continue
        raise invalid(f"the field {shown(name)} is not supported here", _param(name), "unsupported")
    return {name: value for name, value in given.items() if name in names}


def _neutral(name: str) -> tuple[Any, ...]:
    values = _NEUTRAL.get(name, ())
    return values + tuple(float(v) for v in values if type(v) is int)


def _param(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:60]}..."


def _request(
    body: Mapping[str, Any],
    settings: ServerSettings,
    greedy: bool,
    prompts: Sequence[str | list[int]],
    messages: Sequence[Message],
    default_max_tokens: int | None,
) -> CompletionRequest:
    _check_model(body.get("model"), settings)
    n = _whole(body, "n", 1, settings.max_choices)
    if n * max(len(prompts), 1) > settings.max_choices:
        raise invalid(f"prompts times n must be at most {settings.max_choices}", "n")
    default = settings.max_tokens if default_max_tokens is None else default_max_tokens
    most = _whole(body, "max_tokens", min(default, settings.max_tokens), settings.max_tokens)
    stream = _flag(body, "stream")
    options: dict[str, Any] = {
        name: body[name] for name in (*_SAMPLING, *_DRAFTING) if name in body
    }
    options.setdefault("temperature", 0.0 if greedy else 1.0)
    options["max_new_tokens"] = most
    _check_options(options)
    if not isinstance(body.get("user", ""), str):
        raise invalid("user must be a string", "user")
    return CompletionRequest(
        prompts=prompts,
        messages=messages,
        options=options,  # type: ignore[arg-type]
        n=n,
        stream=stream,
        include_usage=_include_usage(body.get("stream_options"), stream),
    )


def _check_model(model: object, settings: ServerSettings) -> None:
    if model is None:
        raise invalid("you must name a model", "model")
    if model != settings.model_name:
        raise ApiError(
            404, f"the model {shown(model)} does not exist", param="model", code="model_not_found"
        )


def _check_options(options: Mapping[str, Any]) -> None:
    """Refuse what JSON can say and a number of ours cannot; ranges are the runtime's to check."""
    seed, stop = options.get("seed", 0), options.get("stop", ())
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise invalid("seed must be a whole number of 0 to 2**63 - 1", "seed")
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list | tuple) or len(stops) > _MAX_STOPS:
        raise invalid(f"stop must be a string or a list of at most {_MAX_STOPS}", "stop")


def _include_usage(options: object, stream: bool) -> bool:
    if options is None:
        return False
    if not stream or not isinstance(options, dict):
        raise invalid("stream_options must be an object, with stream", "stream_options")
    for name in options:
        if name != "include_usage":
            raise invalid(
                f"the field {shown(name)} of stream_options is not supported", "stream_options"
            )
    return _flag(options, "include_usage")


def _prompts(prompt: object) -> list[str | list[int]]:
    wanted = invalid("prompt must be a string, token ids, or a list of either", "prompt")
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise wanted
    if all(_is_id(token) for token in prompt):
        return [prompt]
    if all(isinstance(one, str) for one in prompt):
        return prompt
    if all(isinstance(one, list) and all(_is_id(token) for token in one) for one in prompt):
        return prompt
    raise wanted


def _messages(messages: object) -> list[Message]:
    if not isinstance(messages, list) or not messages:
        raise invalid("messages must be a list of at least one message", "messages")
    return [_message(f"messages[{place}]", one) for place, one in enumerate(messages)]


def _message(where: str, message: object) -> Message:
    if not isinstance(message, dict):
        raise invalid(f"{where} must be an object", where)
    for name, value in message.items():
        if name not in ("role", "content", "name") and value not in (None, []):
            raise invalid(f"the field {shown(name)} of {where} is not supported", where)
    if message.get("role") not in _ROLES:
        raise invalid(f"{where}.role must be one of {', '.join(_ROLES)}", f"{where}.role")
    name = message.get("name")
    if not isinstance(name, str | None):
        raise invalid(f"{where}.name must be a string", f"{where}.name")
    read = {"role": message["role"], "content": _content(where, message.get("content"))}
    return read if name is None else {**read, "name": name}


def _content(where: str, content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(f"{where}.content must be a string or a list of text parts", where)
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise invalid(f"{where}.content may have parts of the type 'text' alone", where)
        if not isinstance(part.get("text"), str):
            raise invalid(f"a text part of {where}.content has no text", where)
        texts.append(part["text"])
    return "".join(texts)


def _whole(body: Mapping[str, Any], name: str, default: int, most: int) -> int:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise invalid(f"{name} must be a whole number of 1 to {most}", name)
    return value


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise invalid(f"{name} must be true or false", name)
    return value


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
