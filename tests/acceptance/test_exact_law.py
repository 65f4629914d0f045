"""Proof by enumeration: the rejection rule's joint output law is the target's, as fractions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch

from spec_compile.acceptance import RULES
from spec_compile.runtime import sampling as twins
from tests.acceptance.laws import (
    Array,
    ArrayRule,
    Law,
    joint_law,
    one_hot,
    output_law,
    random_law,
    tree,
)


def torch_rejection(
    tokens: Array, draft: Array, target: Array, uniforms: Array
) -> tuple[Array, Array]:
    arrays = (torch.from_numpy(array) for array in (tokens, draft, target, uniforms))
    output, count = RULES["rejection"](*arrays)
    return output.numpy(), count.numpy()


def recovers_from_target(
    tokens: Array, draft: Array, target: Array, uniforms: Array
) -> tuple[Array, Array]:
    """The classic bug: the token after a rejection comes from the target, not the residual."""
    output, count = twins.rejection(tokens, draft, target, uniforms)
    law = target[np.arange(len(output)), count - 1]
    output[np.arange(len(output)), count - 1] = twins.sample(law, uniforms[:, -1])
    return output, count


IMPLEMENTATIONS: dict[str, ArrayRule] = {"torch": torch_rejection, "numpy": twins.rejection}
Pair = tuple[Callable[[], Law], Callable[[], Law]]


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


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "kind", ["random", "dyadic", "zero mass", "one-hot draft", "one-hot target", "disjoint"]
)
@pytest.mark.parametrize("vocab_size,num_drafted", [(2, 1), (2, 3), (3, 2), (4, 1), (4, 2)])
def test_output_law_is_the_target_s(
    implementation: str, kind: str, vocab_size: int, num_drafted: int
) -> None:
    rng = np.random.default_rng([vocab_size, num_drafted, len(kind)])
    draft_law, target_law = pair(kind, vocab_size, rng)
    draft = tree(vocab_size, num_drafted, draft_law)
    target = tree(vocab_size, num_drafted, target_law)
    law = output_law(IMPLEMENTATIONS[implementation], draft, target, num_drafted)
    assert law == joint_law(target, num_drafted + 1)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_equal_laws_accept_everything(implementation: str) -> None:
    rng = np.random.default_rng(5)
    model = tree(3, 2, lambda: random_law(rng, 3, 11))
    law = output_law(IMPLEMENTATIONS[implementation], model, model, 2)
    assert law == joint_law(model, 3)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_no_draft_tokens_is_plain_sampling(implementation: str) -> None:
    rng = np.random.default_rng(6)
    model = tree(4, 0, lambda: random_law(rng, 4, 13, zeros=1))
    law = output_law(IMPLEMENTATIONS[implementation], model, model, 0)
    assert law == joint_law(model, 1)


def test_the_enumeration_finds_a_wrong_rule() -> None:
    """Cells of the wrong rule are among the cuts, so this compares laws, not cells."""
    rng = np.random.default_rng(7)
    draft = tree(3, 1, lambda: random_law(rng, 3, 16))
    target = tree(3, 1, lambda: random_law(rng, 3, 16))
    law = output_law(recovers_from_target, draft, target, 1)
    assert sum(law.values()) == 1
    assert law != joint_law(target, 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_output_law_on_many_random_models(seed: int) -> None:
    rng = np.random.default_rng(seed)
    draft = tree(3, 3, lambda: random_law(rng, 3, int(rng.integers(2, 40))))
    target = tree(3, 3, lambda: random_law(rng, 3, int(rng.integers(2, 40))))
    assert output_law(torch_rejection, draft, target, 3) == joint_law(target, 4)
