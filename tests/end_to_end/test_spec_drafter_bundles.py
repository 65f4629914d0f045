"""Bundles whose draft is a Spec-Drafter: k tokens in one pass over all that was accepted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from spec_compile.config import SpecConfig
from spec_compile.driver import compile as compile_pair
from spec_compile.errors import CheckpointError, ConfigError
from spec_compile.export.checkpoint import open_checkpoint
from spec_compile.export.compact_draft import tokenizer_hash
from spec_compile.export.spec_drafter import DrafterSizes, SpecDrafter
from spec_compile.export.spec_drafter_files import save_spec_drafter
from spec_compile.export.tokenizer_files import read_tokenizer
from spec_compile.runtime.api import Decoder, load
from spec_compile.runtime.batch import Batch
from spec_compile.runtime.decoder import rows_of
from spec_compile.runtime.requests import GenerationOptions
from spec_compile.runtime.rounds import Rounds
from tests.helpers.captured import random_tokens
from tests.helpers.tiny_models import tokens, write_tokenizer
from tests.helpers.tiny_seq2seq import tiny_seq2seq

V, MAX_LENGTH, K = len(tokens()), 24, 3
SIZES = DrafterSizes(V, 16, 2, 2, 2, 24, 20, K + 1, MAX_LENGTH)
CONFIG = SpecConfig(
    num_speculative_tokens=K, acceptance="match", max_length=MAX_LENGTH, batch_size=4
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "target"
    tiny_seq2seq("marian", seed=6, vocab_size=V, tie_word_embeddings=False).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def drafter() -> SpecDrafter:
    torch.manual_seed(5)
    found = SpecDrafter(SIZES)
    for weight in found.parameters():
        weight.data = torch.randn_like(weight) * 0.3
    return found.train(False)


def save(folder: Path, drafter: SpecDrafter, target: Path) -> Path:
    ids = read_tokenizer(open_checkpoint(str(target))).ids()
    save_spec_drafter(folder, drafter, tokenizer_hash(ids), torch.float32)
    return folder


@pytest.fixture(scope="module")
def draft(target: Path, drafter: SpecDrafter, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("models") / "draft", drafter, target)


@pytest.fixture(scope="module")
def decoder(target: Path, draft: Path, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    output = tmp_path_factory.mktemp("bundles") / "bundle"
    return load(compile_pair(str(target), str(draft), output, CONFIG), num_threads=1)


def source_of(length: int) -> list[int]:
    found: list[int] = random_tokens(length, seed=length, vocab_size=V).tolist()
    return found


def test_output_is_the_target_s(decoder: Decoder) -> None:
    """To the last slot, at temperature 0 and above; sources of every length side by side."""
    sources = [source_of(length) for length in (1, 7, MAX_LENGTH, 4)]
    for temperature in (0.0, 0.9):
        found = [
            decoder.generate(
                sources,
                max_new_tokens=99,
                temperature=temperature,
                seed=3,
                ignore_eos=True,
                speculative=speculative,
            )
            for speculative in (True, False)
        ]
        assert [one.token_ids for one in found[0]] == [one.token_ids for one in found[1]]
        assert all(one.finish_reason == "capacity" for one in found[0])
        assert all(one.stats.num_draft_tokens > 0 for one in found[0])


def test_it_reads_all_that_was_accepted(decoder: Decoder, drafter: SpecDrafter) -> None:
    """What is proposed in each round is what the module proposes for the whole text."""
    sources = [source_of(5), source_of(2)]
    first, texts = rows_of(decoder.manifest, sources)
    batch = Batch(first, GenerationOptions(), [0, 0], MAX_LENGTH, texts)
    rounds, committed = Rounds(decoder.engine, decoder.manifest, batch), first
    for extra in ([7, 8], [9, 10, 11], [12]):
        rounds.run()
        proposed = np.array(rounds.buffers["draft_tokens"])
        for row, text in enumerate(committed):
            with torch.no_grad():
                logits = drafter(
                    torch.tensor([sources[row]]),
                    torch.tensor([len(sources[row])]),
                    torch.tensor([text]),
                    torch.tensor([len(text)]),
                )
            assert proposed[row].tolist() == logits[0, :K].argmax(-1).tolist()
            kept = extra[: len(extra) - row]
            batch.commit(row, kept)
            committed[row] = [*text, *kept]


@pytest.mark.parametrize("beta,tau", [(1, 0.0), (V, 1e9)])
def test_spec_verification(
    beta: int, tau: float, target: Path, draft: Path, tmp_path: Path
) -> None:
    """beta = 1 is greedy decoding of the target; with no limits every draft token is kept."""
    config = replace(CONFIG, acceptance="specdec", specdec_beta=beta, specdec_tau=tau)
    decoder = load(compile_pair(str(target), str(draft), tmp_path / "bundle", config))
    sources = [source_of(length) for length in (3, 9)]
    found, plain = (
        decoder.generate(
            sources, max_new_tokens=20, temperature=0.0, ignore_eos=True, speculative=speculative
        )
        for speculative in (True, False)
    )
    assert decoder.manifest.config.exact == (beta == 1)
    for one, greedy in zip(found, plain, strict=True):
        if beta == 1:
            assert one.token_ids == greedy.token_ids
        else:
            assert one.stats.acceptance_rate == 1.0
            assert one.token_ids != greedy.token_ids


REFUSED = {
    "step": (SpecConfig(acceptance="match", fusion="step"), "choose fusion='verify'"),
    "rule": (SpecConfig(acceptance="rejection"), "acceptance='rejection' needs them"),
    "k": (
        SpecConfig(acceptance="match", num_speculative_tokens=K + 2),
        f"proposes {K + 1} tokens at most",
    ),
    "head": (
        SpecConfig(acceptance="match", draft_vocab=9, draft_vocab_text="x"),
        "leave out draft_vocab",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_do_is_refused(name: str, target: Path, draft: Path, tmp_path: Path) -> None:
    config, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        compile_pair(str(target), str(draft), tmp_path / "bundle", config)


def test_another_tokenizer_is_refused(target: Path, drafter: SpecDrafter, tmp_path: Path) -> None:
    save_spec_drafter(tmp_path / "draft", drafter, "0" * 64)
    with pytest.raises(CheckpointError, match="another tokenizer"):
        compile_pair(str(target), str(tmp_path / "draft"), tmp_path / "bundle", CONFIG)
