"""The cost of a round: measured where a bundle has it, put together from calls elsewhere."""

from __future__ import annotations

import pytest

from spec_compile.planning.costs import BETWEEN, ESTIMATED, MEASURED, Costs, RoundTimes

PLAIN = RoundTimes(0.0, 10.0, 0.1, 0.0, 12.0)
TARGET = {width: 10.0 + 0.1 * width for width in range(1, 14)}


def round_of(draft: float, tail: float, width: int) -> RoundTimes:
    """A measured round whose verify call takes `tail` longer than the target over `width`."""
    return RoundTimes(draft, TARGET[width] + tail, 0.2, draft + 1, TARGET[width] + tail + 2)


def costs(lawless: dict[tuple[int, int], RoundTimes] | None = None) -> Costs:
    """Of a pair with laws measured at k = 1 and 4, and draft calls that grow with their rows."""
    rounds = {(1, 1): round_of(1.0, 0.2, 2), (4, 1): round_of(4.0, 0.8, 5)}
    return Costs(PLAIN, rounds, lawless or {}, TARGET, {1: 4.0, 2: 6.0})


def test_measured_sizes_are_taken_as_they_are() -> None:
    found = costs().of(4, 1)
    assert found is not None
    assert (found.source, found.draft) == (MEASURED, 4.0)


def test_sizes_between_lie_on_the_line() -> None:
    found = costs().of(3, 1)
    assert found is not None
    assert found.source == BETWEEN
    assert found.draft == pytest.approx(3.0)
    assert found.target == pytest.approx(TARGET[4] + 0.6)


def test_nothing_is_extrapolated() -> None:
    assert costs().of(5, 1) is None
    assert costs().of(4, 4) is None


def test_several_drafts_without_a_bundle_are_estimated() -> None:
    found = costs().of(4, 2)
    assert found is not None
    assert found.source == ESTIMATED
    assert found.draft == pytest.approx(4.0 * 6.0 / 4.0)
    assert found.target == pytest.approx(TARGET[9] + 2 * 0.8)


def test_a_draft_without_law_has_costs_of_its_own() -> None:
    both = costs({(4, 1): round_of(2.0, 0.4, 5)})
    for k, expected in ((4, 2.0), (3, 1.5), (2, 1.0), (1, 0.5)):
        found = both.of(k, 1, lawless=True)
        assert found is not None
        assert found.draft == pytest.approx(expected)
    with_law = both.of(4, 1)
    assert with_law is not None
    assert with_law.draft == 4.0


def test_without_such_a_bundle_it_costs_what_others_do() -> None:
    assert costs().of(4, 1, lawless=True) == costs().of(4, 1)


def test_a_bundle_without_law_beyond_the_others_is_used_for_them() -> None:
    found = costs({(6, 1): round_of(3.0, 0.6, 7)}).of(6, 1)
    assert found is not None
    assert found.draft == 3.0
