"""Right answers of whole bundles: exported, loaded and run as a user does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedModel

from spec_compile.config import SpecConfig
from spec_compile.driver import compile as compile_pair
from spec_compile.errors import CheckpointError
from spec_compile.runtime.api import Decoder
from tests.end_to_end.conftest import MAX_LENGTH, Bundles, Folders, V, greedy
from tests.helpers.captured import random_tokens
from tests.helpers.contract_loop import ContractLoop
from tests.helpers.tiny_models import save_tiny_model, tokens, write_tokenizer


def config_of(k: int, fusion: str = "verify", acceptance: str = "rejection") -> SpecConfig:
    return SpecConfig(
        num_speculative_tokens=k,
        fusion=fusion,
        acceptance=acceptance,
        max_length=MAX_LENGTH,
        batch_size=4,
    )


def prompt_of(length: int, seed: int = 0) -> list[int]:
    found: list[int] = random_tokens(length, seed=seed, vocab_size=V).tolist()
    return found


def check_greedy(decoder: Decoder, reference: PreTrainedModel, k: int) -> None:
    """Greedy identity for prompts from one token to capacity, filling every slot."""
    for length in {1, 2, 7, k + 1, MAX_LENGTH - k - 1, MAX_LENGTH - 1}:
        prompt = prompt_of(length, seed=length)
        expected = greedy(reference, prompt, MAX_LENGTH - length)
        result = decoder.generate(prompt, max_new_tokens=99, temperature=0.0, ignore_eos=True)
        assert result.token_ids == expected
        assert result.finish_reason == "capacity"
        alone = decoder.generate(
            prompt, max_new_tokens=99, temperature=0.0, ignore_eos=True, speculative=False
        )
        assert alone.token_ids == expected


# One of each fusion and rule, and the drafts that differ most; the square is behind `slow`.
FAST = [
    ("self", config_of(2, "verify")),
    ("wrong", config_of(1, "verify", "greedy")),
    ("good", config_of(4, "step")),
]
SLOW = [
    ("random", config_of(7, "verify", "greedy")),
    *((draft, config_of(k)) for draft in ("self", "random", "wrong", "good") for k in (1, 2, 4, 7)),
    *((draft, config_of(k, "step")) for draft in ("self", "random", "wrong") for k in (1, 4)),
    *((draft, config_of(3, "step", "greedy")) for draft in ("random", "good")),
    ("short", config_of(4)),
    ("short", config_of(2, "step", "greedy")),
]
IDS = [f"{d}-{c.fusion}-{c.acceptance}-{c.num_speculative_tokens}" for d, c in (*FAST, *SLOW)]
CASES = [
    *(pytest.param(*case, id=name) for case, name in zip(FAST, IDS, strict=False)),
    *(
        pytest.param(*case, id=name, marks=pytest.mark.slow)
        for case, name in zip(SLOW, IDS[len(FAST) :], strict=True)
        if case not in FAST
    ),
]


@pytest.mark.parametrize("draft,config", CASES)
def test_greedy_output_is_the_target_s(
    bundles: Bundles, reference: PreTrainedModel, draft: str, config: SpecConfig
) -> None:
    check_greedy(bundles(draft, config), reference, config.num_speculative_tokens)


SELF_CASES = [
    FAST[0],
    pytest.param("self", config_of(4, "step"), marks=pytest.mark.slow),
    pytest.param("self", config_of(7), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("draft,config", SELF_CASES)
def test_the_target_as_its_own_draft_is_always_accepted(
    bundles: Bundles, draft: str, config: SpecConfig
) -> None:
    """Also in the rounds after a fully accepted one, which leaves a hole in the draft's cache."""
    k = config.num_speculative_tokens
    rounds = 3
    stats = (
        bundles(draft, config)
        .generate(prompt_of(3), max_new_tokens=rounds * (k + 1), temperature=0.0, ignore_eos=True)
        .stats
    )
    if rounds * (k + 1) + 3 <= MAX_LENGTH:
        assert stats.acceptance_histogram == (0,) * k + (rounds,)
    assert stats.acceptance_rate == 1.0


def test_a_draft_that_is_always_wrong_is_never_accepted(bundles: Bundles) -> None:
    draft, config = FAST[1]
    result = bundles(draft, config).generate(
        prompt_of(3), max_new_tokens=9, temperature=0.0, ignore_eos=True
    )
    assert result.stats.num_accepted_tokens == 0
    assert result.stats.num_rounds == 9


@pytest.mark.parametrize("draft,config", [FAST[0], FAST[2]])
def test_rows_of_a_batch_behave_like_separate_runs(
    bundles: Bundles, draft: str, config: SpecConfig
) -> None:
    """Ragged prompts, seeds of their own, one row that ends at once at its capacity."""
    decoder = bundles(draft, config)
    prompts = [prompt_of(length, seed=length) for length in (1, 7, MAX_LENGTH - 1, 4)]
    seeds = [11, 12, 13, 14]
    together = decoder.generate(
        prompts, max_new_tokens=12, temperature=0.9, top_p=0.95, seed=seeds, ignore_eos=True
    )
    assert [len(result.token_ids) for result in together] == [12, 12, 1, 12]
    for prompt, seed, result in zip(prompts, seeds, together, strict=True):
        alone = decoder.generate(
            prompt, max_new_tokens=12, temperature=0.9, top_p=0.95, seed=seed, ignore_eos=True
        )
        assert alone.token_ids == result.token_ids
        assert alone.stats.acceptance_histogram == result.stats.acceptance_histogram
    assert (
        together[0].token_ids
        != decoder.generate(
            prompts[0], max_new_tokens=12, temperature=0.9, top_p=0.95, seed=99, ignore_eos=True
        ).token_ids
    )


@pytest.mark.parametrize("draft,config", [FAST[0], FAST[2]])
def test_caches_after_mixed_rounds_are_those_of_a_fresh_prefill(
    bundles: Bundles, draft: str, config: SpecConfig
) -> None:
    """Right answer 5, on the caches themselves: rollback leaves what a prefill would have made."""
    decoder = bundles(draft, config)
    loop = ContractLoop(decoder.bundle.folder, num_threads=1)
    prompts = [prompt_of(length, seed=length) for length in (1, 5, 3)]
    loop.start(prompts, temperature=1.5)
    counts: set[int] = set()
    for number in range(3):
        counts |= set(loop.round(np.random.default_rng(number)).tolist())
    assert counts == {config.num_speculative_tokens + 1} if draft == "self" else len(counts) > 1
    logits = loop.next_logits()
    for row, committed in enumerate(loop.committed):
        fresh = decoder.next_logits(committed)
        np.testing.assert_allclose(logits[row], fresh, rtol=0, atol=1e-5 * np.abs(fresh).max())


def test_different_tokenizers_are_refused_by_their_first_difference(
    folders: Folders, tmp_path: Path
) -> None:
    draft = save_tiny_model(tmp_path / "draft")
    vocabulary = tokens()
    vocabulary[5], vocabulary[7] = vocabulary[7], vocabulary[5]
    write_tokenizer(draft, vocabulary)
    output = tmp_path / "bundle"
    with pytest.raises(CheckpointError, match=r"different tokenizers: id 5 is 'e'.*and 'g'"):
        compile_pair(str(folders("target")), str(draft), output)
    assert not output.exists()
