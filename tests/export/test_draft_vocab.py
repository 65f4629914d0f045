"""`most_frequent` and `--draft-vocab`: which tokens a draft may propose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import spec_compile
from spec_compile.cli import main
from spec_compile.config import SpecConfig
from spec_compile.driver import compile
from spec_compile.errors import CheckpointError, ConfigError
from spec_compile.export.checkpoint import open_checkpoint
from spec_compile.export.draft_vocab import most_frequent
from spec_compile.export.tokenizer_files import TokenizerFiles, read_tokenizer
from tests.helpers.tiny_models import VOCAB_SIZE, save_tiny_model, tokens

KNOWN = VOCAB_SIZE - 4
SIZES: dict[str, Any] = {"num_hidden_layers": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("vocab") / "model", tokenizer=True, **SIZES)


@pytest.fixture
def tokenizer(folder: Path) -> TokenizerFiles:
    return read_tokenizer(open_checkpoint(str(folder)))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_text("zzzzyyyxxb")
    return path


def ids_of(characters: str) -> set[int]:
    return {tokens().index(character) for character in characters}


def test_keeps_the_most_frequent_and_the_special_ones(
    tokenizer: TokenizerFiles, text: Path
) -> None:
    found = most_frequent(tokenizer, text, 4, KNOWN, [])
    assert set(found) == {0} | ids_of("zyx")
    assert list(found) == sorted(found)


def test_of_equals_the_lowest_ids(tokenizer: TokenizerFiles, text: Path) -> None:
    found = most_frequent(tokenizer, text, 8, KNOWN, [])
    assert set(found) == {0} | ids_of("zyxbacd")


def test_keeps_what_ends_a_text(tokenizer: TokenizerFiles, text: Path) -> None:
    assert set(most_frequent(tokenizer, text, 3, KNOWN, [7])) == {0, 7} | ids_of("z")


@pytest.mark.parametrize(
    "count, reason",
    [(KNOWN, r"must be smaller than the 60 tokens"), (1, r"leaves no room beside the 1 special")],
)
def test_refuses_a_count_that_says_nothing(
    tokenizer: TokenizerFiles, text: Path, count: int, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        most_frequent(tokenizer, text, count, KNOWN, [])


def test_refuses_a_pair_without_a_tokenizer(folder: Path, text: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tokenizer.*leave out draft_vocab$"):
        most_frequent(TokenizerFiles(folder, None), text, 8, KNOWN, [])


@pytest.mark.parametrize(
    "data, reason", [(b"\xff\xfe", r"is not UTF-8 text$"), (None, r"^cannot read .*: No such")]
)
def test_refuses_a_text_it_cannot_read(
    tokenizer: TokenizerFiles, tmp_path: Path, data: bytes | None, reason: str
) -> None:
    path = tmp_path / "bad"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(CheckpointError, match=reason):
        most_frequent(tokenizer, path, 8, KNOWN, [])


@pytest.mark.parametrize(
    "options",
    [{"draft_vocab": 8}, {"draft_vocab_text": "x"}, {"draft_vocab": 0, "draft_vocab_text": "x"}],
)
def test_the_two_options_go_together(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"draft_vocab"):
        SpecConfig(**options)  # type: ignore[arg-type]


def test_the_command_line_has_both(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--draft-vocab", "8", "--draft-vocab-text", str(tmp_path / "missing")]
    models = ["--target", str(folder), "--draft", str(folder)]
    assert main(["export", *models, "-o", str(tmp_path / "bundle"), *options]) == 1
    assert f"cannot read {tmp_path / 'missing'}" in capsys.readouterr().err


@pytest.mark.parametrize("fusion", ["verify", "step"])
def test_end_to_end_the_draft_proposes_those_alone_and_the_output_stays(
    folder: Path, text: Path, tmp_path: Path, fusion: str
) -> None:
    config = SpecConfig(
        num_speculative_tokens=2,
        fusion=fusion,
        max_length=24,
        batch_size=2,
        draft_vocab=40,
        draft_vocab_text=str(text),
    )
    bundle = compile(str(folder), str(folder), tmp_path / "bundle", config, verify_each=True)
    decoder = spec_compile.load(bundle)
    plain, fast = (
        decoder.generate([5, 6, 7], max_new_tokens=12, ignore_eos=True, speculative=speculative)
        for speculative in (False, True)
    )
    assert fast.token_ids == plain.token_ids
    # Its own draft but for the missing tokens, so that some proposals are kept.
    assert fast.stats.num_accepted_tokens > 0
