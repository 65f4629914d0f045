"""Tokenizers: read, compared, sized, copied."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from spec_compile.errors import CheckpointError
from spec_compile.export.checkpoint import open_checkpoint
from spec_compile.export.tokenizer_files import (
    TokenizerFiles,
    check_same,
    read_tokenizer,
    vocabulary_size,
)
from tests.helpers.tiny_models import save_tiny_model, tokens, write_tokenizer


def read(folder: Path, vocabulary: list[str] | None = None) -> TokenizerFiles:
    """A tokenizer written and read again."""
    write_tokenizer(folder, vocabulary)
    return TokenizerFiles(folder, Tokenizer.from_file(str(folder / "tokenizer.json")))


def test_ids_include_added_tokens(tmp_path: Path) -> None:
    tokenizer = read(tmp_path)
    assert tokenizer.tokenizer is not None
    tokenizer.tokenizer.add_special_tokens(["<|late|>"])
    assert tokenizer.ids()[len(tokens())] == "<|late|>"
    assert [tokenizer.ids()[index] for index in range(len(tokens()))] == tokens()


def test_same_tokenizers_pass(tmp_path: Path) -> None:
    check_same(read(tmp_path / "a"), read(tmp_path / "b"))
    check_same(TokenizerFiles(tmp_path, None), TokenizerFiles(tmp_path, None))


@pytest.mark.parametrize("first", [0, 1, 30, 59])
def test_first_difference_is_named(first: int, tmp_path: Path) -> None:
    changed = tokens()
    changed[first] = "#"
    changed[-1] = "&" if first != 59 else "#"
    with pytest.raises(CheckpointError, match=f"id {first} is ") as error:
        check_same(read(tmp_path / "a"), read(tmp_path / "b", changed))
    assert repr(tokens()[first]) in str(error.value)
    assert "'#'" in str(error.value)


def test_vocabulary_is_what_the_tokenizer_knows(tmp_path: Path) -> None:
    tokenizer = read(tmp_path)
    known = len(tokens())
    # Heads are padded, each model's to a size of its own; a draft may even know fewer ids.
    assert vocabulary_size(tokenizer, known, known) == known
    assert vocabulary_size(tokenizer, known + 4, known + 68) == known
    assert vocabulary_size(tokenizer, known, known - 10) == known
    with pytest.raises(CheckpointError, match=f"knows id {known - 1}, the target's head has only"):
        vocabulary_size(tokenizer, known - 1, known)


def test_vocabulary_without_tokenizer_is_the_heads(tmp_path: Path) -> None:
    nothing = TokenizerFiles(tmp_path, None)
    assert vocabulary_size(nothing, 64, 64) == 64
    with pytest.raises(CheckpointError, match="64 token ids and the draft 72"):
        vocabulary_size(nothing, 64, 72)


def test_files_are_copied(tmp_path: Path) -> None:
    tokenizer = read(tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "model" / "notes.txt").write_text("mine")
    (tmp_path / "bundle").mkdir()
    tokenizer.write(tmp_path / "bundle")
    written = {path.name for path in (tmp_path / "bundle").iterdir()}
    assert written == {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    again = Tokenizer.from_file(str(tmp_path / "bundle" / "tokenizer.json"))
    assert again.encode("ab (c)").ids == [1, 2, 59, 57, 3, 58]
    assert again.decode(again.encode("ab (c)").ids) == "ab (c)"


def test_older_files_are_converted(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "gpt2", num_hidden_layers=1)
    vocabulary = {token: index for index, token in enumerate(tokens())}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), tokens()[0])
    settings = {"tokenizer_class": "GPT2Tokenizer", **special}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = read_tokenizer(open_checkpoint(str(tmp_path)))
    assert tokenizer.tokenizer is not None
    assert tokenizer.tokenizer.encode("ab c").ids == [1, 2, 59, 3]
    assert tokenizer.ids()[1] == "a"


def test_damaged_older_files_are_refused(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "gpt2", num_hidden_layers=1)
    (tmp_path / "tokenizer.model").write_bytes(b"\xff\xff\xff")
    with pytest.raises(CheckpointError, match=r"cannot turn the tokenizer of .* into tokenizer"):
        read_tokenizer(open_checkpoint(str(tmp_path)))


def test_no_tokenizer_is_no_error(tmp_path: Path) -> None:
    tokenizer = read_tokenizer(open_checkpoint(str(save_tiny_model(tmp_path))))
    assert tokenizer.tokenizer is None
    assert tokenizer.ids() == {}
