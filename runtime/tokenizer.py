"""The bundle's tokenizer and chat template, as the files of the checkpoint define them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spec_compile.errors import ArtifactError, GenerationError
from spec_compile.runtime.loader import Bundle

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TOKENIZER, _SETTINGS, _TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
Message = Mapping[str, Any]


class BundleTokenizer:
    """Text to ids and back; see `load_tokenizer`.

    Args:
        tokenizer: the parsed `tokenizer.json`.
        special_names: `bos_token`, `eos_token`, ... -> text, for the chat template.
        chat_template: the template's text, or None.
    """

    def __init__(
        self, tokenizer: Tokenizer, special_names: Mapping[str, str], chat_template: str | None
    ) -> None:
        self._tokenizer = tokenizer
        self._special_names = dict(special_names)
        self._chat_template = chat_template
        added = tokenizer.get_added_tokens_decoder()
        self._specials = {token.content: id_ for id_, token in added.items() if token.special}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, with the tokenizer's own special tokens around it when asked."""
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids`, special tokens left out."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    def special_token_id(self, text: str) -> int | None:
        """The id of the special token spelled `text`, or None."""
        return self._specials.get(text)

    def render_chat(self, messages: Sequence[Message]) -> str:
        """The prompt that the model's chat template makes of `messages`, open for the answer.

        Args:
            messages: `{"role": ..., "content": ...}`, oldest first.

        Raises:
            GenerationError: the bundle has no template, or the template refuses the messages.
        """
        if self._chat_template is None:
            raise GenerationError("this bundle has no chat template; pass a plain prompt")
        return _render(self._chat_template, messages, self._special_names)


def load_tokenizer(bundle: Bundle) -> BundleTokenizer | None:
    """The bundle's tokenizer, or None when it has none.

    Raises:
        ArtifactError: a tokenizer file is damaged.
    """
    if _TOKENIZER not in bundle.manifest.files:
        return None
    from tokenizers import Tokenizer

    path = bundle.path(_TOKENIZER)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises bare Exception
        raise ArtifactError(f"{path}: is no tokenizer: {error}") from error
    settings = _read_settings(bundle)
    return BundleTokenizer(tokenizer, _special_names(settings), _read_template(bundle, settings))


def _read_settings(bundle: Bundle) -> dict[str, Any]:
    if _SETTINGS not in bundle.manifest.files:
        return {}
    path = bundle.path(_SETTINGS)
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(settings, dict):
        raise ArtifactError(f"{path}: must be a JSON object")
    return settings


def _read_template(bundle: Bundle, settings: Mapping[str, Any]) -> str | None:
    if _TEMPLATE in bundle.manifest.files:
        return bundle.path(_TEMPLATE).read_text(encoding="utf-8")
    template = settings.get("chat_template")
    return template if isinstance(template, str) else None


def _special_names(settings: Mapping[str, Any]) -> dict[str, str]:
    names = {}
    for name, value in settings.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            names[name] = content
    return names


def _render(template: str, messages: Sequence[Message], names: Mapping[str, str]) -> str:
    # A template comes with the checkpoint: it runs in a sandbox that reaches and changes nothing.
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    try:
        compiled = environment.from_string(template)
        return compiled.render(messages=list(messages), add_generation_prompt=True, **names)
    except GenerationError:
        raise
    except (jinja2.TemplateError, TypeError, ValueError, RecursionError) as error:
        raise GenerationError(f"the chat template cannot render the messages: {error}") from error


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def _refuse(message: str) -> None:
    raise GenerationError(f"the chat template refuses the messages: {message}")
