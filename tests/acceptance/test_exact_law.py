"""Proof by enumeration: the joint output law of every exact rule is the target's, as fractions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from spec_compile.acceptance import RULES, SeveralDraftsRule
from spec_compile.runtime.acceptance import RULES as TWINS
from spec_compile.runtime.acceptance import several, single
from tests.acceptance.explore import mean_emitted, output_law
from tests.acceptance.laws import Array, Law, joint_law, one_hot, random_law, tree

SINGLE = ("rejection", "block", "match")
SEVERAL = ("kseq", "recursive", "recursive_wor", "fanout")
KINDS = (
    "random",
    "dyadic",
    "zero mass",
    "one-hot draft",
    "one-hot target",
    "disjoint",
)
Pair = tuple[Callable[[], Law], Callable[[], Law]]


def run_torch(name: str, *arrays: Array) -> tuple[Array, Array]:
    output, count = RULES[name](*(torch.from_numpy(array) for array in arrays))
    return output.numpy(), count.numpy()


def law_of(name: str, draft: Any, target: Any, sizes: tuple[int, int]) -> dict[Any, Fraction]:
    """The output law, with torch and NumPy compared in every box of it."""
    return output_law(name, draft, target, sizes, [partial(run_torch, name), TWINS[name]])


def pair(kind: str, vocab_size: int, rng: np.random.Generator) -> Pair:
    """Makers of a draft law and a target law for each prefix."""
    low, high = vocab_size // 2, vocab_size - vocab_size // 2
    zeros = (Fraction(0),)
    pairs: dict[str, Pair] = {
        "random": (
            lambda: random_law(rng, vocab_size, 30),
            lambda: random_law(rng, vocab_size, 7),
        ),
        "dyadic": (
            lambda: random_law(rng, vocab_size, 16),
            lambda: random_law(rng, vocab_size, 16),
        ),
        "zero mass": (
            lambda: random_law(rng, vocab_size, 9, zeros=1),
            lambda: random_law(rng, vocab_size, 12, zeros=1),
        ),
        "one-hot draft": (
            lambda: one_hot(vocab_size, int(rng.integers(vocab_size))),
            lambda: random_law(rng, vocab_size, 10),
        ),
        "one-hot target": (
            lambda: random_law(rng, vocab_size, 10),
            lambda: one_hot(vocab_size, int(rng.integers(vocab_size))),
        ),
        "disjoint": (
            lambda: random_law(rng, low, 5) + zeros * high,
            lambda: zeros * low + random_law(rng, high, 5),
        ),
    }
    return pairs[kind]


def test_every_exact_rule_is_proven_here() -> None:
    exact = {name for name, rule in RULES.items() if rule.exact}
    assert exact == {*SINGLE, *SEVERAL, "greedy", "topk_plus_one"}
    assert {n for n, r in RULES.items() if isinstance(r, SeveralDraftsRule)} == {
        *SEVERAL,
        "topk_plus_one",
    }


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab_size,length", [(2, 1), (2, 3), (3, 2), (4, 1), (4, 2)])
def test_one_draft(name: str, kind: str, vocab_size: int, length: int) -> None:
    rng = np.random.default_rng([vocab_size, length, len(kind)])
    draft_law, target_law = pair(kind, vocab_size, rng)
    draft, target = (tree(vocab_size, length, law) for law in (draft_law, target_law))
    assert law_of(name, draft, target, (0, length)) == joint_law(target, length + 1)


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "vocab_size,num_drafts,length", [(3, 1, 2), (2, 2, 2), (3, 2, 1), (4, 3, 1), (2, 3, 1)]
)
def test_several_drafts(
    name: str, kind: str, vocab_size: int, num_drafts: int, length: int
) -> None:
    if RULES[name].drafting.value in ("without_replacement", "top_and_one"):
        num_drafts = min(num_drafts, vocab_size)
    rng = np.random.default_rng([vocab_size, num_drafts, length, len(kind)])
    draft_law, target_law = pair(kind, vocab_size, rng)
    draft, target = (tree(vocab_size, length, law) for law in (draft_law, target_law))
    assert law_of(name, draft, target, (num_drafts, length)) == joint_law(target, length + 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("vocab_size,num_drafts,length", [(3, 2, 2), (2, 3, 2), (3, 3, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_several_drafts_at_length(
    name: str, vocab_size: int, num_drafts: int, length: int, seed: int
) -> None:
    if RULES[name].drafting.value in ("without_replacement", "top_and_one"):
        num_drafts = min(num_drafts, vocab_size)
    rng = np.random.default_rng([seed, vocab_size])
    draft, target = (
        tree(vocab_size, length, lambda: random_law(rng, vocab_size, int(rng.integers(2, 30))))
        for _ in range(2)
    )
    assert law_of(name, draft, target, (num_drafts, length)) == joint_law(target, length + 1)


@pytest.mark.parametrize("name", [*SINGLE, *SEVERAL])
def test_equal_laws(name: str) -> None:
    """The output law holds, and but for `match`, which samples anew, every draft token stays."""
    rng = np.random.default_rng(5)
    model = tree(3, 2, lambda: random_law(rng, 3, 11))
    sizes = (0, 2) if name in SINGLE else (2, 2)
    assert law_of(name, model, model, sizes) == joint_law(model, 3)
    if name not in ("match", "fanout"):
        # k-SEQ keeps a margin from the scale at which rounding would make it wrong.
        assert float(mean_emitted(name, model, model, sizes)) == pytest.approx(3, abs=1e-4)


@pytest.mark.parametrize("name", SINGLE)
def test_no_draft_tokens_is_plain_sampling(name: str) -> None:
    rng = np.random.default_rng(6)
    model = tree(4, 0, lambda: random_law(rng, 4, 13, zeros=1))
    assert law_of(name, model, model, (0, 0)) == joint_law(model, 1)


def test_the_enumeration_finds_a_wrong_rule() -> None:
    """The classic bug: the token after a rejection comes from the target, not the residual."""

    def recovers_from_target(tokens: Any, draft: Any, target: Any, decide: Any) -> list[int]:
        for position, token in enumerate(tokens):
            if not decide.less(position, draft[position][token], target[position][token]):
                return [*tokens[:position], decide.draw(len(tokens), target[position])]
        return [*tokens, decide.draw(len(tokens), target[-1])]

    rng = np.random.default_rng(7)
    draft, target = (tree(3, 1, lambda: random_law(rng, 3, 16)) for _ in range(2))
    law = output_law("rejection", draft, target, (0, 1), row_rule=recovers_from_target)
    assert sum(law.values()) == 1
    assert law != joint_law(target, 2)
    assert output_law("rejection", draft, target, (0, 1)) == joint_law(target, 2)


def test_a_scale_of_kseq_beyond_the_valid_ones_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates tested as if each were alone: more is accepted than the target has."""
    monkeypatch.setattr(several, "largest_scale", lambda draft, target, count: Fraction(1))
    rng = np.random.default_rng(7)
    draft, target = (tree(3, 1, lambda: random_law(rng, 3, 16)) for _ in range(2))
    law = output_law("kseq", draft, target, (2, 1))
    assert sum(law.values()) == 1
    assert law != joint_law(target, 2)


@pytest.mark.parametrize("seed", range(6))
def test_block_never_accepts_less_than_rejection(seed: int) -> None:
    rng = np.random.default_rng(seed)
    draft, target = (
        tree(3, 2, lambda: random_law(rng, 3, int(rng.integers(2, 30)))) for _ in range(2)
    )
    block, token = (mean_emitted(name, draft, target, (0, 2)) for name in ("block", "rejection"))
    assert block >= token


def test_the_paper_s_example_of_block_verification() -> None:
    """Sun et al. 2024, section 2: 10/9 accepted tokens become 11/9."""
    draft = tree(2, 2, lambda: (Fraction(2, 3), Fraction(1, 3)))
    target = tree(2, 2, lambda: (Fraction(1, 3), Fraction(2, 3)))
    assert mean_emitted("rejection", draft, target, (0, 2)) == 1 + Fraction(10, 9)
    assert mean_emitted("block", draft, target, (0, 2)) == 1 + Fraction(11, 9)


def test_one_draft_of_several_is_rejection() -> None:
    rng = np.random.default_rng(8)
    draft, target = (tree(3, 2, lambda: random_law(rng, 3, 14)) for _ in range(2))
    expected = mean_emitted("rejection", draft, target, (0, 2))
    for name in ("kseq", "recursive"):
        assert mean_emitted(name, draft, target, (1, 2)) == expected


def test_lenient_of_one_is_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single, "LENIENCE", 1)
    rng = np.random.default_rng(9)
    draft, target = (tree(3, 2, lambda: random_law(rng, 3, 14)) for _ in range(2))
    assert output_law("lenient", draft, target, (0, 2)) == joint_law(target, 3)
