"""Chances laid over the target's text, against every round that the rules can run."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from spec_compile.errors import ConfigError
from spec_compile.planning.models import (
    APPROXIMATE,
    Choice,
    choices,
    differs,
    exact_rules,
    model_of,
    serves,
)
from spec_compile.planning.observation import Observation
from spec_compile.planning.rounds import efficiency, expected_rounds
from spec_compile.planning.single import lenient_law, typical_law
from tests.acceptance.explore import mean_emitted
from tests.acceptance.laws import Law, Tree, path_probability, random_law, tree

SINGLE = [("block", 0), ("rejection", 0), ("match", 0)]
SEVERAL = [("fanout", 2), ("fanout", 3), ("recursive", 2), ("recursive", 3), ("kseq", 2)]
SHAPES = [(3, 1), (3, 2), (2, 3)]


def trees(vocab_size: int, length: int, seed: int) -> tuple[Tree, Tree]:
    rng = np.random.default_rng(seed)
    zeros = seed % 2
    draft = tree(vocab_size, length, lambda: random_law(rng, vocab_size, 11, zeros))
    return draft, tree(vocab_size, length, lambda: random_law(rng, vocab_size, 13))


def predicted(choice: Choice, draft: Tree, target: Tree, length: int) -> float:
    """Emitted tokens of a round, by the model, over every text that the target can write."""
    model, rng, total = model_of(choice), np.random.default_rng(0), 0.0
    for path in itertools.product(range(len(target[()])), repeat=length):
        if not (chance := float(path_probability(target, path))):
            continue
        seen = [
            Observation(token, floats(draft[path[:i]]), floats(target[path[:i]]), best, rng)
            for i, token in enumerate(path)
            for best in [ranks(draft[path[:i]])]
        ]
        survival = model.survival(np.stack([model.observe(one) for one in seen]), length)
        total += chance * float(survival[0].sum())
    return total


def floats(law: Law) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.array([float(mass) for mass in law])


def ranks(law: Law) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.argsort(-floats(law), kind="stable").astype(np.int64)


@pytest.mark.parametrize("name,num_drafts", [*SINGLE, *SEVERAL])
@pytest.mark.parametrize("vocab_size,length", SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_the_mean_over_the_texts_is_that_over_the_rounds(
    name: str, num_drafts: int, vocab_size: int, length: int, seed: int
) -> None:
    if name == "fanout" and num_drafts > vocab_size:
        pytest.skip("as many different first tokens do not exist")
    draft, target = trees(vocab_size, length, seed)
    exact = float(mean_emitted(name, draft, target, (num_drafts, length)))
    found = predicted(Choice(name, max(num_drafts, 1)), draft, target, length)
    # The rule stops its search for rho short of the best one.
    assert found == pytest.approx(exact, rel=0.03 if name == "kseq" else 1e-9)


@pytest.mark.parametrize("seed", range(2))
def test_drafts_without_replacement(seed: int) -> None:
    """Two drafts of one token: what is left hangs on the token drawn, so that a mean is drawn."""
    draft, target = trees(3, 1, seed)
    exact = float(mean_emitted("recursive_wor", draft, target, (2, 1)))
    model, rng = model_of(Choice("recursive_wor", 2)), np.random.default_rng(1)
    laws = floats(draft[()]), floats(target[()])
    found = 1.0
    for token, chance in enumerate(target[()]):
        if chance:
            seen = Observation(token, *laws, ranks(draft[()]), rng)
            drawn = [float(model.observe(seen)[0]) for _ in range(300)]
            found += float(chance) * float(np.mean(drawn))
    assert found == pytest.approx(exact, abs=0.01)


def test_one_draft_of_any_several_drafts_rule_is_rejection() -> None:
    draft, target = trees(3, 2, 4)
    wanted = predicted(Choice("rejection", 1), draft, target, 2)
    for name in ("recursive", "kseq"):
        assert predicted(Choice(name, 1), draft, target, 2) == pytest.approx(wanted)


@pytest.mark.parametrize("name", APPROXIMATE)
def test_approximate_rules_are_seen_in_their_own_text(name: str) -> None:
    """One token a round: the chance of the text's token, averaged over what the rule emits."""
    draft, target = trees(3, 1, 5)
    laws, best = (floats(draft[()]), floats(target[()])), ranks(draft[()])
    emitted = lenient_law(*laws) if name == "lenient" else typical_law(int(best[0]), laws[1])
    assert emitted.sum() == pytest.approx(1)
    model, rng = model_of(Choice(name, 1)), np.random.default_rng(0)
    accepted = sum(
        chance * float(model.observe(Observation(token, *laws, best, rng)))
        for token, chance in enumerate(emitted)
        if chance
    )
    exact = float(mean_emitted(name, draft, target, (0, 1)))
    assert 1 + accepted == pytest.approx(exact)


def test_rounds_follow_each_other_through_the_text() -> None:
    certain, never = np.ones((7, 4)), np.eye(1, 4).repeat(7, axis=0)
    assert expected_rounds(certain) == 2  # 4 tokens each; the second is cut
    assert expected_rounds(never) == 7
    half = np.array([[1.0, 0.5]] * 3)
    # After one token or two: rounds at 0, at 1 with 1/2, at 2 with 1/2 + 1/4.
    assert expected_rounds(half) == pytest.approx(2.25)


def test_efficiency_pools_texts_and_tells_their_spread() -> None:
    certain, never = np.ones((4, 4)), np.eye(1, 4).repeat(4, axis=0)
    found = efficiency([certain, never])
    assert found.num_rounds == 5 and found.block_efficiency == 8 / 5
    assert found.standard_error == pytest.approx(1.6 * np.std([1, 4], ddof=1) / 2.5 / np.sqrt(2))
    assert efficiency([never]).standard_error == 0


def test_choices_of_a_grid() -> None:
    assert choices(["block", "fanout"], [1, 2, 4]) == [
        Choice("block", 1),
        Choice("fanout", 2),
        Choice("fanout", 4),
    ]
    assert choices(["block"], [2]) == [Choice("block", 1)]
    with pytest.raises(ConfigError, match="above 1"):
        choices(["kseq"], [1])
    with pytest.raises(ConfigError, match="rule 'best'"):
        choices(["best"], [1])
    assert set(exact_rules()).isdisjoint(APPROXIMATE)
    assert not serves(Choice("greedy", 1), 0.5, 2) and serves(Choice("greedy", 1), 0.0, 2)
    assert not serves(Choice("topk_plus_one", 2), 1.0, 2)
    assert not differs(Choice("block", 1), 0.0) and differs(Choice("fanout", 2), 0.0)
