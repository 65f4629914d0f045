"""Statistics: each formula on numbers worked out by hand, and on a real generation."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spec_compile.runtime.api import Decoder
from spec_compile.runtime.row import Row
from spec_compile.runtime.stats import GenerationStats, Percentiles, Round, pool
from tests.helpers.toy_bundle import Toy

LoadToy = Callable[[Toy], Decoder]
STATS = GenerationStats(
    num_speculative_tokens=4,
    rounds=(
        Round(4, 2, 3, 30.0, is_first=True),
        Round(4, 4, 5, 10.0, is_first=False),
        Round(4, 0, 1, 8.0, is_first=False),
        Round(2, 2, 2, 12.0, is_first=False),
    ),
    wall_ms=60.0,
)


def make_row(budget: int, eos: tuple[int, ...] = ()) -> Row:
    """A row without text, k = 4."""
    return Row(
        budget=budget,
        budget_reason="length",
        eos_token_ids=eos,
        stops=(),
        tokenizer=None,
        num_speculative_tokens=4,
    )


def test_counts_and_rates() -> None:
    assert STATS.num_rounds == 4
    assert STATS.num_draft_tokens == 14
    assert STATS.num_accepted_tokens == 8
    assert STATS.num_emitted_tokens == 11
    assert STATS.acceptance_rate == pytest.approx(8 / 14)
    assert STATS.block_efficiency == pytest.approx(11 / 4)
    assert STATS.acceptance_histogram == (1, 0, 2, 0, 1)


def test_times() -> None:
    assert STATS.ttft_ms == 30.0
    assert STATS.tokens_per_second == pytest.approx(11 / 0.060)
    # Tokens after the first round: five at 2 ms, one at 8 ms, two at 6 ms.
    assert STATS.tpot_ms.median == pytest.approx(2.0)
    assert STATS.tpot_ms.p90 == pytest.approx(6.0 + 0.3 * 2.0)
    assert Percentiles.of([], []) == Percentiles(0.0, 0.0, 0.0)


def test_empty_statistics_are_zeros() -> None:
    stats = GenerationStats(2, (), 0.0)
    assert stats.acceptance_rate == stats.block_efficiency == stats.tokens_per_second == 0.0
    assert stats.acceptance_histogram == (0, 0, 0)


def test_pooled_rates_are_of_the_sums() -> None:
    pooled = pool([STATS, STATS], wall_ms=60.0)
    assert pooled.num_emitted_tokens == 22
    assert pooled.acceptance_rate == STATS.acceptance_rate
    assert pooled.tokens_per_second == pytest.approx(2 * STATS.tokens_per_second)
    assert pooled.tpot_ms.median == STATS.tpot_ms.median
    assert pool([STATS, STATS]).wall_ms == 120.0


def test_whole_block_counts_all_proposals() -> None:
    row = make_row(budget=10)
    assert list(row.accept([5, 6, 7], 1.0)) == [5, 6, 7]
    assert row.stats().rounds == (Round(4, 2, 3, 1.0, is_first=True),)


@pytest.mark.parametrize("place", [1, 2, 3, 4])
def test_cut_block_counts_nothing_beyond_the_cut(place: int) -> None:
    """By EOS and by the budget alike: what is kept was proposed and accepted."""
    block = [5, 6, 7, 8, 9]
    for row in (make_row(budget=place), make_row(budget=10, eos=(block[place - 1],))):
        assert list(row.accept(block, 1.0)) == block[:place]
        assert row.finished
        assert row.stats().rounds == (Round(place, place, place, 1.0, is_first=True),)


def test_end_on_the_last_token_cuts_nothing() -> None:
    row = make_row(budget=3)
    row.accept([5, 6, 7], 1.0)
    assert row.finish_reason == "length"
    assert row.stats().rounds == (Round(4, 2, 3, 1.0, is_first=True),)


@pytest.mark.parametrize("speculative", [True, False])
def test_invariants_of_a_generation(load_toy: LoadToy, speculative: bool) -> None:
    decoder = load_toy(Toy(k=3))
    for seed in range(10):
        result = decoder.generate([1, 2], temperature=1.0, seed=seed, speculative=speculative)
        stats = result.stats
        histogram = stats.acceptance_histogram
        assert len(histogram) == (4 if speculative else 1)
        assert sum(histogram) == stats.num_rounds
        assert sum(i * n for i, n in enumerate(histogram)) == stats.num_accepted_tokens
        assert stats.num_emitted_tokens == len(result.token_ids)
        assert 0 < stats.ttft_ms <= stats.wall_ms
        names = set(stats.as_dict())
        assert {"num_rounds", "acceptance_rate", "tpot_ms", "tokens_per_second"} < names
