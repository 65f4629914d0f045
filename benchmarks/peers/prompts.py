"""The prompts of the comparison, as the token ids that every peer is given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from spec_compile.errors import GenerationError
from spec_compile.runtime.tokenizer import BundleTokenizer

DEFAULT_FILE = Path(__file__).with_name("prompts.json")
KINDS = ("chat", "code", "prose", "rewriting")
_IN_TEMPLATE = ("chat", "rewriting")
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


class PromptError(Exception):
    """A prompt file or tokenizer that cannot be used, in one line."""


@dataclass(frozen=True)
class Prompt:
    """One text.

    Args:
        kind: one of KINDS; `chat` and `rewriting` go through the chat template as one message.
        text: as written.
    """

    kind: str
    text: str


def read_prompts(file: Path) -> list[Prompt]:
    """The prompts of a JSON file: a list of objects with `kind` and `text`.

    Raises:
        PromptError: the file cannot be read, or is no such list.
    """
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
        prompts = [Prompt(str(entry["kind"]), str(entry["text"])) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PromptError(f"{file} is no list of objects with kind and text: {error}") from error
    wrong = {prompt.kind for prompt in prompts} - set(KINDS)
    if wrong or not prompts:
        what = f"has unknown kinds {sorted(wrong)}" if wrong else "holds no prompt"
        raise PromptError(f"{file} {what}; kinds are {', '.join(KINDS)}")
    return prompts


def choose(prompts: Sequence[Prompt], count: int | None) -> list[Prompt]:
    """`count` prompts, or all, ordered so that the first ones are of as many kinds as there are."""
    groups = [[one for one in prompts if one.kind == kind] for kind in KINDS]
    longest = max(len(group) for group in groups)
    ordered = [group[i] for i in range(longest) for group in groups if i < len(group)]
    return ordered[:count]


def encode(prompts: Sequence[Prompt], checkpoint: Path) -> list[list[int]]:
    """Token ids by the tokenizer and chat template of a Hugging Face folder.

    Raises:
        PromptError: the folder has no tokenizer, or no chat template where one is needed.
    """
    tokenizer = _load_tokenizer(checkpoint)
    try:
        return [_encode_one(tokenizer, prompt) for prompt in prompts]
    except GenerationError as error:
        raise PromptError(f"{checkpoint}: {error}") from error


def _encode_one(tokenizer: BundleTokenizer, prompt: Prompt) -> list[int]:
    if prompt.kind not in _IN_TEMPLATE:
        return tokenizer.encode(prompt.text)
    text = tokenizer.render_chat([{"role": "user", "content": prompt.text}])
    return tokenizer.encode(text, add_special_tokens=False)  # the template writes them itself


def _load_tokenizer(checkpoint: Path) -> BundleTokenizer:
    template = checkpoint / "chat_template.jinja"
    try:
        tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
        settings = json.loads((checkpoint / "tokenizer_config.json").read_text(encoding="utf-8"))
        chat = template.read_text(encoding="utf-8") if template.is_file() else None
    except Exception as error:  # the library's errors share no base class
        raise PromptError(f"{checkpoint} has no tokenizer that can be read: {error}") from error
    names = {name: settings[name] for name in _SPECIAL if isinstance(settings.get(name), str)}
    return BundleTokenizer(tokenizer, names, chat)
