"""Laws and models as fractions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

Law = tuple[Fraction, ...]
Tree = Mapping[tuple[int, ...], Law]
Array = npt.NDArray[Any]


def random_law(rng: np.random.Generator, vocab_size: int, total: int, zeros: int = 0) -> Law:
    """A law with denominator `total` and at least `zeros` impossible tokens."""
    alive = rng.permutation(vocab_size)[: vocab_size - zeros]
    counts = np.zeros(vocab_size, dtype=int)
    counts[alive] = rng.multinomial(total, np.full(len(alive), 1 / len(alive)))
    return tuple(Fraction(int(count), total) for count in counts)


def one_hot(vocab_size: int, token: int) -> Law:
    """The law that always gives `token`."""
    return tuple(Fraction(int(token == other)) for other in range(vocab_size))


def tree(vocab_size: int, depth: int, law: Callable[[], Law]) -> Tree:
    """An own law after every prefix of up to `depth` tokens."""
    prefixes = (
        prefix
        for length in range(depth + 1)
        for prefix in itertools.product(range(vocab_size), repeat=length)
    )
    return {prefix: law() for prefix in prefixes}


def path_probability(model: Tree, path: Sequence[int], start: int = 0) -> Fraction:
    """Probability that `model` continues path[:start] with path[start:]."""
    value = Fraction(1)
    for position in range(start, len(path)):
        value *= model[tuple(path[:position])][path[position]]
    return value


def joint_law(model: Tree, length: int) -> dict[tuple[int, ...], Fraction]:
    """Law of the first `length` tokens that `model` alone would give, zeros left out."""
    vocab_size = len(model[()])
    paths = itertools.product(range(vocab_size), repeat=length)
    law = {path: path_probability(model, path) for path in paths}
    return {path: value for path, value in law.items() if value}
