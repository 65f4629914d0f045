"""Prompt lookup: the index finds what a search finds, and bundles without a draft are right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_compile.checking.chi_square import chi_square
from spec_compile.errors import ConfigError
from spec_compile.runtime.api import Decoder
from spec_compile.runtime.prompt_lookup import NgramIndex
from spec_compile.runtime.requests import Options
from tests.helpers.toy_bundle import Toy

LoadToy = Callable[[Toy], Decoder]
PROMPTS = ([3], [1, 2, 3, 1, 2], [12, 12, 4, 9, 1, 0, 7, 12, 12, 4])


def lookup(acceptance: str = "greedy", k: int = 3) -> Toy:
    return Toy(acceptance=acceptance, k=k, drafter="prompt-lookup", batch_size=400)


def search(text: list[int], sizes: tuple[int, int], most: int) -> list[int]:
    """The proposal by looking through the whole text."""
    for size in range(sizes[1], sizes[0] - 1, -1):
        for start in range(len(text) - size - 1, -1, -1):
            if text[start : start + size] == text[len(text) - size :]:
                found = text[start + size :][:most]
                return [found[i % len(found)] for i in range(most)]
    return []


@settings(max_examples=200, deadline=None)
@given(
    text=st.lists(st.integers(0, 3), max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    sizes=st.sampled_from([(1, 1), (1, 3), (2, 3), (3, 4)]),
    most=st.integers(1, 6),
)
def test_finds_what_a_search_finds(
    text: list[int], cuts: list[int], sizes: tuple[int, int], most: int
) -> None:
    """However the text arrives."""
    index = NgramIndex(*sizes)
    for first, last in zip([0, *sorted(cuts)], [*sorted(cuts), len(text)], strict=True):
        index.extend(text[first:last])
        assert index.propose(most) == search(text[: len(index)], sizes, most)
    assert len(index) == len(text)


def test_the_longest_and_then_the_last_place_wins_and_a_short_one_repeats() -> None:
    index = NgramIndex(1, 2)
    index.extend([1, 2, 7, 2, 8, 1, 2])
    assert index.propose(3) == [7, 2, 8]
    index.extend([5, 5])
    assert index.propose(3) == [5, 5, 5]
    index.extend([6])
    assert index.propose(3) == []


@pytest.mark.parametrize("k", [1, 2, 4, 7])
@pytest.mark.parametrize("acceptance", ["greedy", "match"])
def test_greedy_output_is_the_target_s(load_toy: LoadToy, acceptance: str, k: int) -> None:
    toy = lookup(acceptance, k)
    decoder = load_toy(toy)
    for prompt in PROMPTS:
        expected = toy.target.greedy(prompt, 30)
        result = decoder.generate(prompt, max_new_tokens=30, ignore_eos=True)
        assert list(result.token_ids) == expected
        alone = decoder.generate(prompt, max_new_tokens=30, ignore_eos=True, speculative=False)
        assert list(alone.token_ids) == expected


@pytest.mark.parametrize("room", range(1, 7))
def test_prompt_near_capacity(load_toy: LoadToy, room: int) -> None:
    toy = lookup(k=4)
    prompt = [1 + number % 5 for number in range(toy.max_length - room)]
    result = load_toy(toy).generate(prompt, max_new_tokens=100, ignore_eos=True)
    assert list(result.token_ids) == toy.target.greedy(prompt, room)
    assert result.finish_reason == "capacity"


@pytest.mark.parametrize("num_tokens", range(1, 11))
def test_exactly_max_new_tokens(load_toy: LoadToy, num_tokens: int) -> None:
    toy = lookup()
    result = load_toy(toy).generate([1, 2, 1, 2], max_new_tokens=num_tokens, ignore_eos=True)
    assert list(result.token_ids) == toy.target.greedy([1, 2, 1, 2], num_tokens)
    assert result.stats.num_emitted_tokens == num_tokens


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_rows_of_a_batch_equal_single_runs(load_toy: LoadToy, temperature: float) -> None:
    """Rows that propose different numbers of tokens, none included, in one call."""
    decoder = load_toy(lookup("match"))
    prompts = [[1], [2, 3, 2, 3, 2], [9, 9], [12, 1, 12]]
    seeds = [5, 6, 7, 8]
    together = decoder.generate(
        prompts, max_new_tokens=20, temperature=temperature, seed=seeds, ignore_eos=True
    )
    proposed = set()
    for prompt, seed, one in zip(prompts, seeds, together, strict=True):
        alone = decoder.generate(
            prompt, max_new_tokens=20, temperature=temperature, seed=seed, ignore_eos=True
        )
        assert one.token_ids == alone.token_ids
        assert one.stats.acceptance_histogram == alone.stats.acceptance_histogram
        assert one.stats.num_draft_tokens == alone.stats.num_draft_tokens
        proposed |= {each.num_draft_tokens for each in one.stats.rounds}
    assert {0, 3} <= proposed


def test_statistics_count_what_was_proposed(load_toy: LoadToy) -> None:
    stats = load_toy(lookup()).generate([3], max_new_tokens=30, ignore_eos=True).stats
    assert stats.rounds[0].num_draft_tokens == 0  # one token says nothing about the next
    assert 0 < stats.num_draft_tokens < 3 * stats.num_rounds
    assert 0 < stats.num_accepted_tokens <= stats.num_draft_tokens
    # The last round is cut by the budget, so that all its tokens may be draft tokens.
    assert stats.num_emitted_tokens - stats.num_accepted_tokens - stats.num_rounds in (-1, 0)
    assert sum(stats.acceptance_histogram) == stats.num_rounds


def test_streams_and_seeds(load_toy: LoadToy) -> None:
    decoder = load_toy(lookup("match"))

    def tokens(seed: int) -> tuple[int, ...]:
        stream = decoder.stream_tokens(
            [1, 2, 1, 2], max_new_tokens=20, temperature=1.0, ignore_eos=True, seed=seed
        )
        return tuple(stream)

    whole = decoder.generate(
        [1, 2, 1, 2], max_new_tokens=20, temperature=1.0, ignore_eos=True, seed=4
    )
    assert tokens(4) == tokens(4) == whole.token_ids
    assert tokens(5) != tokens(4)


def test_a_seed_gives_the_tokens_of_plain_decoding(load_toy: LoadToy) -> None:
    """Whatever is looked up; the law of the tokens is thereby the target's."""
    decoder = load_toy(lookup("match"))
    for prompt in PROMPTS:
        common = Options(max_new_tokens=30, temperature=1.2, seed=9, ignore_eos=True)
        runs: list[Options] = [
            {**common, "speculative": False},
            common,
            {**common, "prompt_lookup_min": 3},
            {**common, "prompt_lookup_max": 1},
        ]
        plain, *others = (decoder.generate(prompt, **options) for options in runs)
        assert {other.token_ids for other in others} == {plain.token_ids}


def test_sampled_tokens_follow_the_target_s_law(load_toy: LoadToy) -> None:
    """The first two tokens of 4,000 rows, whose first proposal is as good as wrong or right."""
    toy = lookup("match")
    prompt = [1, 2, 3, 1, 2]
    decoder = load_toy(toy)
    found = [
        result.token_ids
        for first in range(0, 4000, 400)
        for result in decoder.generate(
            [prompt] * 400, max_new_tokens=2, temperature=1.5, seed=first, ignore_eos=True
        )
    ]
    commonest = Counter(tokens[0] for tokens in found).most_common(1)[0][0]
    seconds = [tokens[1] for tokens in found if tokens[0] == commonest]
    for context, drawn in ((prompt, [t[0] for t in found]), ([*prompt, commonest], seconds)):
        law = softmax(toy.target.next_logits(context) / 1.5)
        assert chi_square(np.bincount(drawn, minlength=len(law)), law).p_value > 1e-3


def softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize("stop", ["b", "ca", "aab"])
def test_stop_strings_and_eos_cut_a_block(load_toy: LoadToy, stop: str) -> None:
    decoder = load_toy(lookup("match"))
    for seed in range(8):
        ends = [
            decoder.generate(
                [1, 2, 1, 2, 1], temperature=0.9, seed=seed, stop=stop, speculative=speculative
            )
            for speculative in (True, False)
        ]
        kept = [(end.text, end.token_ids, end.finish_reason) for end in ends]
        assert kept[0] == kept[1]
        assert ends[0].stats.num_emitted_tokens == len(ends[0].token_ids)


@pytest.mark.parametrize(
    "options,message",
    [
        (Options(prompt_lookup_min=4), "prompt_lookup_min=4 must be at most prompt_lookup_max=3"),
        (Options(prompt_lookup_max=0), "prompt_lookup_max=0 must be a whole number of 1 to 32"),
        (Options(prompt_lookup_max=33), "prompt_lookup_max=33 must be a whole number of 1 to 32"),
    ],
)
def test_sizes_that_cannot_be_are_refused(
    load_toy: LoadToy, options: Options, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_toy(lookup()).generate([1], **options)


def test_sizes_of_a_bundle_with_a_draft_are_refused(load_toy: LoadToy) -> None:
    with pytest.raises(ConfigError, match="prompt_lookup_max is an option of prompt lookup, but"):
        load_toy(Toy()).generate([1], prompt_lookup_max=2)


def test_sizes_of_a_generation_are_used(load_toy: LoadToy) -> None:
    """Of [2, 7, 3, 7], one last token was seen, two were not."""
    decoder = load_toy(lookup())
    one, two = (
        decoder.generate([2, 7, 3, 7], max_new_tokens=1, prompt_lookup_min=least).stats
        for least in (1, 2)
    )
    assert (one.num_rounds, one.rounds[0].num_draft_tokens > 0) == (1, True)
    assert two.rounds[0].num_draft_tokens == 0
