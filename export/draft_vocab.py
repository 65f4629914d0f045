"""Which tokens a draft may propose: the most frequent ones of a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from spec_compile.errors import CheckpointError, ConfigError
from spec_compile.export.tokenizer_files import TokenizerFiles


def most_frequent(
    tokenizer: TokenizerFiles, text: Path, count: int, vocab_size: int, always: Sequence[int]
) -> tuple[int, ...]:
    """The `count` ids that `text` holds most often, ascending; of equals the lowest ids.

    Args:
        tokenizer: the pair's.
        text: a UTF-8 file in the manner of what will be generated.
        count: ids to keep, `always` and special tokens included.
        vocab_size: V; fewer than this many are kept.
        always: ids that are kept whatever the text holds: those that end a text.

    Raises:
        ConfigError: `count` is not below V, or holds no more than what is kept anyway.
        CheckpointError: no tokenizer, or the text cannot be read.
    """
    if tokenizer.tokenizer is None:
        raise CheckpointError(
            f"{tokenizer.folder} has no tokenizer, so tokens of a text cannot be counted; "
            "leave out draft_vocab"
        )
    if count >= vocab_size:
        raise ConfigError(
            f"draft_vocab={count} must be smaller than the {vocab_size} tokens of the pair"
        )
    added = tokenizer.tokenizer.get_added_tokens_decoder()
    special = {index for index, token in added.items() if token.special}
    kept = {index for index in (*special, *always) if index < vocab_size}
    if count <= len(kept):
        raise ConfigError(
            f"draft_vocab={count} leaves no room beside the {len(kept)} special tokens"
        )
    counts = Counter(tokenizer.tokenizer.encode(_read(text), add_special_tokens=False).ids)
    ranked = sorted(range(vocab_size), key=lambda index: (-counts[index], index))
    rest = [index for index in ranked if index not in kept]
    return tuple(sorted([*kept, *rest[: count - len(kept)]]))


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 text") from error
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
