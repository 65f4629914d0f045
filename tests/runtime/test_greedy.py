"""Greedy output equals target-only decoding, whatever the draft, k, fusion or prompt."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from spec_compile.runtime.api import Decoder
from tests.helpers.toy_bundle import EOS, Toy

LoadToy = Callable[[Toy], Decoder]
PROMPTS = ([3], [1, 2, 3], [12, 12, 4, 9, 1, 0, 7])


@pytest.mark.parametrize(
    "fusion, acceptance, draft, k",
    [
        *itertools.product(
            ("verify", "step"),
            ("rejection", "greedy"),
            ("self", "good", "random", "wrong"),
            (1, 2, 4, 7),
        )
    ],
)
def test_equals_target_only_and_reference(
    load_toy: LoadToy, fusion: str, acceptance: str, draft: str, k: int
) -> None:
    toy = Toy(fusion=fusion, acceptance=acceptance, draft=draft, k=k)
    decoder = load_toy(toy)
    for prompt in PROMPTS:
        expected = toy.target.greedy(prompt, 30)
        result = decoder.generate(prompt, max_new_tokens=30, ignore_eos=True)
        alone = decoder.generate(prompt, max_new_tokens=30, ignore_eos=True, speculative=False)
        assert list(result.token_ids) == expected
        assert list(alone.token_ids) == expected


@pytest.mark.parametrize("fusion", ["verify", "step"])
@pytest.mark.parametrize("k", [1, 2, 4, 7])
def test_own_draft_is_always_accepted(load_toy: LoadToy, fusion: str, k: int) -> None:
    """Also in the round after a fully accepted one, whose last token the draft never read."""
    decoder = load_toy(Toy(fusion=fusion, draft="self", k=k))
    stats = decoder.generate([1, 2], max_new_tokens=4 * (k + 1), ignore_eos=True).stats
    assert stats.acceptance_histogram == (0,) * k + (4,)
    assert stats.acceptance_rate == 1.0


def test_wrong_draft_is_never_accepted(load_toy: LoadToy) -> None:
    decoder = load_toy(Toy(draft="wrong", k=2))
    stats = decoder.generate([1, 2], max_new_tokens=9, ignore_eos=True).stats
    assert (stats.num_rounds, stats.num_accepted_tokens, stats.num_draft_tokens) == (9, 0, 18)


@pytest.mark.parametrize("fusion", ["verify", "step"])
@pytest.mark.parametrize("num_tokens", range(1, 11))
def test_exactly_max_new_tokens(load_toy: LoadToy, fusion: str, num_tokens: int) -> None:
    toy = Toy(fusion=fusion, draft="self", k=3)
    result = load_toy(toy).generate([1, 2], max_new_tokens=num_tokens, ignore_eos=True)
    assert list(result.token_ids) == toy.target.greedy([1, 2], num_tokens)
    assert result.finish_reason == "length"
    assert result.stats.num_emitted_tokens == num_tokens


@pytest.mark.parametrize("fusion", ["verify", "step"])
@pytest.mark.parametrize("draft", ["self", "good"])
@pytest.mark.parametrize("room", range(1, 9))
def test_prompt_near_capacity(load_toy: LoadToy, fusion: str, draft: str, room: int) -> None:
    toy = Toy(fusion=fusion, draft=draft, k=4)
    prompt = [1 + number % 12 for number in range(toy.max_length - room)]
    result = load_toy(toy).generate(prompt, max_new_tokens=100, ignore_eos=True)
    assert list(result.token_ids) == toy.target.greedy(prompt, room)
    assert result.finish_reason == "capacity"


@pytest.mark.parametrize("length", [1, 2, 4, 5, 7, 47])
@pytest.mark.parametrize("fusion", ["verify", "step"])
def test_prompts_of_any_length_on_one_bundle(load_toy: LoadToy, fusion: str, length: int) -> None:
    toy = Toy(fusion=fusion, k=4)
    prompt = [1 + number % 5 for number in range(length)]
    result = load_toy(toy).generate(prompt, max_new_tokens=1, ignore_eos=True)
    assert list(result.token_ids) == toy.target.greedy(prompt, 1)


@pytest.mark.parametrize("fusion", ["verify", "step"])
def test_eos_inside_a_block_ends_the_output(load_toy: LoadToy, fusion: str) -> None:
    """With the target as draft the whole block is accepted, so EOS falls on every place of it."""
    places = set()
    for eos, first in itertools.product((EOS, 1, 3, 8), range(1, 13)):
        toy = Toy(fusion=fusion, draft="self", k=4, eos=(eos,))
        whole = toy.target.greedy([first], 40)
        expected = whole[: whole.index(eos) + 1] if eos in whole else whole
        result = load_toy(toy).generate([first], max_new_tokens=40)
        assert list(result.token_ids) == expected
        assert result.finish_reason == ("eos" if eos in whole else "length")
        assert result.stats.num_emitted_tokens == len(expected)
        places.add(len(expected) % 5)
    assert places == {0, 1, 2, 3, 4}


def test_any_of_several_eos_ids(load_toy: LoadToy) -> None:
    toy = Toy(draft="self", eos=(EOS, 8, 11))
    for first in range(1, 13):
        whole = toy.target.greedy([first], 40)
        ends = [place for place, token in enumerate(whole) if token in toy.eos]
        expected = whole[: ends[0] + 1] if ends else whole
        assert list(load_toy(toy).generate([first], max_new_tokens=40).token_ids) == expected


@pytest.mark.parametrize("fusion", ["verify", "step"])
@pytest.mark.parametrize("acceptance", ["greedy", "rejection"])
def test_rows_of_a_batch_equal_single_runs(load_toy: LoadToy, fusion: str, acceptance: str) -> None:
    """Ragged prompts; rows end at different rounds; more prompts than rows run in groups."""
    decoder = load_toy(Toy(fusion=fusion, acceptance=acceptance, batch_size=3))
    prompts = [[1], [2, 3, 4, 5, 6, 7, 8], [9, 9], [12, 1, 12], [4], [5, 4, 3, 2, 1], [7, 7]]
    together = decoder.generate(prompts, max_new_tokens=25)
    alone = [decoder.generate(prompt, max_new_tokens=25) for prompt in prompts]
    assert [r.token_ids for r in together] == [r.token_ids for r in alone]
    assert [r.finish_reason for r in together] == [r.finish_reason for r in alone]
    histograms = [r.stats.acceptance_histogram for r in together]
    assert histograms == [r.stats.acceptance_histogram for r in alone]
    assert len({len(r.token_ids) for r in together}) > 1


def test_next_logits_are_those_of_the_target(load_toy: LoadToy) -> None:
    toy = Toy()
    prompt = [3, 1, 4, 1, 5]
    logits = load_toy(toy).next_logits(prompt)
    np.testing.assert_array_equal(logits, toy.target.next_logits(prompt))
