"""Kinds of tokens follow the rounds, and every token comes with its own text, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spec_compile.runtime.api import Decoder
from spec_compile.runtime.row import LENGTH, Row
from spec_compile.runtime.stats import Round
from spec_compile.runtime.token_kinds import (
    ACCEPTED,
    BONUS,
    RECOVERED,
    TARGET,
    TOKEN_KINDS,
    KnownToken,
    KnownTokens,
    kinds_of,
)
from spec_compile.runtime.tokenizer import BundleTokenizer
from tests.helpers.toy_bundle import EOS, VOCAB, Toy, toy_tokenizer

LoadToy = Callable[[Toy], Decoder]
TOKENIZER = BundleTokenizer(toy_tokenizer(), {}, None)
K = 3
blocks = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=K + 1), max_size=8)
stop_lists = st.lists(st.text("ab c", min_size=1, max_size=4), max_size=3)


def follow(row: Row, blocks: Sequence[Sequence[int]]) -> list[KnownToken]:
    """Feed `row` and read it after each round, as a stream does."""
    reader, found, shown = KnownTokens(TOKENIZER.decode), list[KnownToken](), ""
    for block in blocks:
        row.accept(block, 1.0)
        text = row.read_text()
        shown += text
        found += reader.read(text, row.token_ids, row.stats().rounds)
        assert shown.startswith("".join(token.text for token in found))
    row.cancel()
    return found + reader.read(row.read_text(), row.token_ids, row.stats().rounds, ended=True)


def make_row(stops: Sequence[str] = (), budget: int = 30) -> Row:
    return Row(
        budget=budget,
        budget_reason=LENGTH,
        eos_token_ids=[EOS],
        stops=stops,
        tokenizer=TOKENIZER,
        num_speculative_tokens=K,
    )


def test_kinds_follow_the_rounds() -> None:
    rounds = [
        Round(3, 3, 4, 1.0, True),
        Round(3, 1, 2, 1.0, False),
        Round(0, 0, 1, 1.0, False),
        Round(2, 2, 2, 1.0, False),
    ]
    assert kinds_of(rounds) == [
        *[ACCEPTED] * 3,
        BONUS,
        ACCEPTED,
        RECOVERED,
        TARGET,
        *[ACCEPTED] * 2,
    ]


# How fast inputs are drawn depends on what else the machine does.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(blocks, stop_lists)
def test_texts_and_kinds_are_those_of_the_output(blocks: list[list[int]], stops: list[str]) -> None:
    row = make_row(stops)
    found = follow(row, blocks)
    assert "".join(token.text for token in found) == row.text
    assert len(found) == len(row.token_ids)
    whole = [(len(block) - 1, block) for block in blocks]
    wanted = [
        kind
        for accepted, _ in whole
        for kind in [*[ACCEPTED] * accepted, BONUS if accepted == K else RECOVERED]
    ]
    # What ends inside a block ends with a draft token, unless it is the block's last.
    assert [token.kind for token in found] == wanted[: len(found)]


def test_each_text_is_with_the_token_that_completed_it() -> None:
    a, b, c, first, second = 1, 2, 3, 7, 8  # the last two are the bytes of one character
    found = follow(make_row(["ab!"]), [[c, a, b], [c, first], [second, a]])
    assert [token.text for token in found] == ["c", "a", "b", "c", "", "é", "a"]
    cut = follow(make_row(["bc"]), [[a, b], [c, a]])
    assert [(token.text, token.kind) for token in cut] == [
        ("a", ACCEPTED),
        ("", RECOVERED),
        ("", ACCEPTED),
    ]


@pytest.mark.parametrize("speculative", [True, False])
def test_a_real_generation(load_toy: LoadToy, speculative: bool) -> None:
    result = load_toy(Toy(k=K)).generate(
        "ab", max_new_tokens=30, temperature=1.0, seed=3, speculative=speculative
    )
    kinds = kinds_of(result.stats.rounds)
    assert len(kinds) == len(result.token_ids)
    assert kinds.count(ACCEPTED) == result.stats.num_accepted_tokens
    assert set(kinds) == ({ACCEPTED, RECOVERED, BONUS} if speculative else {TARGET})


def test_kinds_can_be_told_apart_without_colours() -> None:
    for told in ("name", "label", "terminal", "light", "dark", "underline"):
        assert len({getattr(kind, told) for kind in TOKEN_KINDS}) == len(TOKEN_KINDS)
