"""The bundle's tokenizer and chat template, as the files of the checkpoint define them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from spec_compile.errors import ArtifactError, GenerationError
from spec_compile.runtime.loader import Bundle

if TYPE_CHECKING:
    from jinja2 import Environment, Template
    from tokenizers import Tokenizer

_TOKENIZER, _SETTINGS, _TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
Message = Mapping[str, Any]
_LONGEST_REASON = 300
_SHORT_TEXT = 2000  # characters


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
        """Token ids of `text`, with the tokenizer's own special tokens around it when asked.

        Raises:
            GenerationError: the tokenizer has no ids for it, or it is not Unicode text.
        """
        with _explained("encode this text"):
            if len(text) <= _SHORT_TEXT:
                encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
            else:  # a batch alone lets other threads run meanwhile, which may be for seconds
                (encoding,) = self._tokenizer.encode_batch(
                    [text], add_special_tokens=add_special_tokens
                )
            return list(encoding.ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids`, special tokens left out.

        Raises:
            GenerationError: the tokenizer's decoder fails.
        """
        with _explained("decode the output"):
            return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    def special_token_id(self, text: str) -> int | None:
        """The id of the special token spelled `text`, or None."""
        return self._specials.get(text)

    @property
    def has_chat_template(self) -> bool:
        """Whether `render_chat` can work."""
        return self._chat_template is not None

    def render_chat(self, messages: Sequence[Message]) -> str:
        """The prompt that the model's chat template makes of `messages`, open for the answer.

        Args:
            messages: `{"role": ..., "content": ...}`, oldest first.

        Raises:
            GenerationError: the bundle has no template, or the template refuses the messages.
        """
        if self._chat_template is None:
            raise GenerationError("this bundle has no chat template; pass a plain prompt")
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=True, **self._special_names
            )
        except GenerationError:
            raise
        except Exception as error:  # a template can divide by zero as any program can
            raise GenerationError(
                f"the chat template cannot render the messages: {_one_line(error)}"
            ) from error

    @cached_property
    def _template(self) -> Template:
        """Compiled once: that takes far longer than a rendering."""
        assert self._chat_template is not None
        return _sandbox().from_string(self._chat_template)


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
        raise ArtifactError(
            f"{path}: is no tokenizer ({error}); export the bundle again"
        ) from error
    settings = _read_settings(bundle)
    return BundleTokenizer(tokenizer, _special_names(settings), _read_template(bundle, settings))


def _read_settings(bundle: Bundle) -> dict[str, Any]:
    if _SETTINGS not in bundle.manifest.files:
        return {}
    path = bundle.path(_SETTINGS)
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{path}: is not valid JSON ({error}); export the bundle again"
        ) from error
    if not isinstance(settings, dict):
        raise ArtifactError(f"{path}: must be a JSON object; export the bundle again")
    return settings


def _read_template(bundle: Bundle, settings: Mapping[str, Any]) -> str | None:
    if _TEMPLATE in bundle.manifest.files:
        path = bundle.path(_TEMPLATE)
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ArtifactError(f"{path}: is not UTF-8 text; export the bundle again") from error
    template = settings.get("chat_template")
    return template if isinstance(template, str) else None


def _special_names(settings: Mapping[str, Any]) -> dict[str, str]:
    names = {}
    for name, value in settings.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            names[name] = content
    return names


def _sandbox() -> Environment:
    # A template comes with the checkpoint: it runs in a sandbox that reaches and changes nothing.
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def _refuse(message: str) -> None:
    raise GenerationError(f"the chat template refuses the messages: {_one_line(message)}")


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn what the tokenizers package raises into one line."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in the package is no Exception
        raise GenerationError(f"the tokenizer cannot {what}: {_one_line(error)}") from error


def _one_line(told: object) -> str:
    line = " ".join(str(told).split()) or type(told).__name__
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}..."
