"""Acceptance formulas against linear programming and against the rules themselves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

from spec_compile.planning.transport import (
    fanout_acceptance,
    kseq_acceptance,
    optimal_acceptance,
    recursive_acceptance,
)
from tests.acceptance.explore import mean_emitted
from tests.acceptance.laws import Law, random_law, tree

FORMULAS = (optimal_acceptance, kseq_acceptance, recursive_acceptance, fanout_acceptance)
SIZES = [(2, 2), (3, 2), (3, 3), (4, 2), (2, 4)]


def transport_plan(draft: NDArray[np.float64], target: NDArray[np.float64], count: int) -> float:
    """The largest acceptance of a coupling of `count` candidates and a token, by its definition."""
    vocab_size = len(draft)
    candidates = list(itertools.product(range(vocab_size), repeat=count))
    chances = [float(np.prod(draft[list(each)])) for each in candidates]
    gain = [-float(token in each) for each in candidates for token in range(vocab_size)]
    rows = np.zeros((len(candidates) + vocab_size, len(gain)))
    for index in range(len(gain)):
        rows[index // vocab_size, index] = 1
        rows[len(candidates) + index % vocab_size, index] = 1
    found = linprog(gain, A_eq=rows, b_eq=[*chances, *target], method="highs")
    return float(-found.fun)


def laws(vocab_size: int, seed: int) -> tuple[Law, Law]:
    rng = np.random.default_rng(seed)
    zeros = seed % 2
    return random_law(rng, vocab_size, 11, zeros), random_law(rng, vocab_size, 13)


@pytest.mark.parametrize("vocab_size,num_drafts", SIZES)
@pytest.mark.parametrize("seed", range(4))
def test_formulas_and_guarantee(vocab_size: int, num_drafts: int, seed: int) -> None:
    draft, target = (np.array([float(mass) for mass in law]) for law in laws(vocab_size, seed))
    best = optimal_acceptance(draft, target, num_drafts)
    assert best == pytest.approx(transport_plan(draft, target, num_drafts), abs=1e-9)
    reached = kseq_acceptance(draft, target, num_drafts)
    assert (1 - (1 - 1 / num_drafts) ** num_drafts) * best - 1e-9 <= reached <= best + 1e-9
    assert reached >= np.minimum(draft, target).sum() - 1e-9


@pytest.mark.parametrize("vocab_size,num_drafts", SIZES)
@pytest.mark.parametrize("seed", range(2))
def test_the_rule_accepts_what_the_formula_says(
    vocab_size: int, num_drafts: int, seed: int
) -> None:
    """The search of k-SEQ stops a little below its best scale, never above."""
    draft, target = laws(vocab_size, seed)
    draft_tree, target_tree = (
        tree(vocab_size, 1, lambda: draft),
        tree(vocab_size, 1, lambda: target),
    )
    floats = [np.array([float(mass) for mass in law]) for law in (draft, target)]
    if num_drafts <= vocab_size:
        accepted = mean_emitted("fanout", draft_tree, target_tree, (num_drafts, 1)) - 1
        formula = fanout_acceptance(floats[0], floats[1], num_drafts)
        assert float(accepted) == pytest.approx(formula, abs=1e-9)
    accepted = mean_emitted("recursive", draft_tree, target_tree, (num_drafts, 1)) - 1
    formula = recursive_acceptance(floats[0], floats[1], num_drafts)
    assert float(accepted) == pytest.approx(formula, abs=1e-9)
    assert formula <= optimal_acceptance(floats[0], floats[1], num_drafts) + 1e-9
    accepted = mean_emitted("kseq", draft_tree, target_tree, (num_drafts, 1)) - 1
    formula = kseq_acceptance(floats[0], floats[1], num_drafts)
    assert 0.99 * formula <= float(accepted) <= formula + 1e-9


def test_more_candidates_accept_more() -> None:
    rng = np.random.default_rng(3)
    draft, target = rng.dirichlet(np.ones(50)), rng.dirichlet(np.ones(50))
    for formula in FORMULAS:
        values = [formula(draft, target, count) for count in (1, 2, 4, 8)]
        assert values == sorted(values)
        assert values[0] == pytest.approx(np.minimum(draft, target).sum())
