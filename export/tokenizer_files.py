"""The tokenizer that a bundle carries: read, compared between the models, copied."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from spec_compile.errors import CheckpointError
from spec_compile.export.checkpoint import Checkpoint
from spec_compile.program import first_line

_SLOW_FILES = ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_COPIED = ("tokenizer_config.json", "chat_template.jinja", "generation_config.json")


@dataclass(frozen=True)
class TokenizerFiles:
    """A model's tokenizer.

    Args:
        folder: the model's folder.
        tokenizer: the parsed tokenizer, or None for a model that has none.
    """

    folder: Path
    tokenizer: Tokenizer | None

    def ids(self) -> Mapping[int, str]:
        """Token by id, added tokens included; empty without a tokenizer."""
        if self.tokenizer is None:
            return {}
        vocabulary: dict[str, int] = self.tokenizer.get_vocab(with_added_tokens=True)
        return {index: token for token, index in vocabulary.items()}

    def write(self, folder: Path) -> None:
        """Put the tokenizer's files, and the generation settings, into a bundle."""
        for name in _COPIED:
            if (self.folder / name).is_file():
                shutil.copyfile(self.folder / name, folder / name)
        if self.tokenizer is not None:
            # Not `save`, whose errors are no OSError: a full disk is told like any other.
            (folder / "tokenizer.json").write_text(self.tokenizer.to_str(), encoding="utf-8")


def read_tokenizer(checkpoint: Checkpoint) -> TokenizerFiles:
    """The tokenizer of a checkpoint.

    Raises:
        CheckpointError: its files are damaged.
    """
    folder = checkpoint.folder
    path = folder / "tokenizer.json"
    if path.is_file():
        try:
            return TokenizerFiles(folder, Tokenizer.from_file(str(path)))
        except Exception as error:
            raise CheckpointError(f"{path} is damaged: {first_line(error)}") from error
    if any((folder / name).is_file() for name in _SLOW_FILES):
        return TokenizerFiles(folder, _convert(folder))
    return TokenizerFiles(folder, None)


def _convert(folder: Path) -> Tokenizer:
    """Older tokenizer files, through transformers' own converter."""
    from transformers import AutoTokenizer

    try:
        converted = AutoTokenizer.from_pretrained(
            folder, use_fast=True, trust_remote_code=False, local_files_only=True
        )
        tokenizer = converted.backend_tokenizer
    except Exception as error:
        raise CheckpointError(
            f"cannot turn the tokenizer of {folder} into tokenizer.json: {first_line(error)}"
        ) from error
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer


def check_same(target: TokenizerFiles, draft: TokenizerFiles) -> None:
    """Refuse a pair whose ids mean different tokens.

    Raises:
        CheckpointError: naming the first id that differs.
    """
    for bare, full in ((target, draft), (draft, target)):
        if bare.tokenizer is None and full.tokenizer is not None:
            raise CheckpointError(
                f"{bare.folder} has no tokenizer and {full.folder} has one; if their ids mean the "
                "same tokens, copy its tokenizer.json"
            )
    ours, theirs = target.ids(), draft.ids()
    for index in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(index), theirs.get(index)
        if mine != other:
            raise CheckpointError(
                f"target and draft have different tokenizers: id {index} is {_said(mine)} in "
                f"{target.folder} and {_said(other)} in {draft.folder}; take a draft of the "
                "target's family"
            )


def vocabulary_size(tokenizer: TokenizerFiles, target_rows: int, draft_rows: int) -> int:
    """V: the ids that the tokenizer knows; without one, the ids that both heads have.

    Args:
        tokenizer: the pair's tokenizer.
        target_rows: outputs of the target's head.
        draft_rows: outputs of the draft's head.

    Raises:
        CheckpointError: the target's head lacks rows for some ids.
    """
    ids = tokenizer.ids()
    if not ids:
        if target_rows != draft_rows:
            raise CheckpointError(
                f"the target has {target_rows} token ids and the draft {draft_rows}, and no "
                "tokenizer.json says that they are the same tokens"
            )
        return target_rows
    known = max(ids) + 1
    if known > target_rows:
        raise CheckpointError(
            f"the tokenizer knows id {known - 1}, the target's head has only {target_rows} outputs"
        )
    return known


def _said(token: str | None) -> str:
    return "missing" if token is None else repr(token)
