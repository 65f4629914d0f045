"""Rational laws, and the exact output law of a rule by integrating it over its uniforms."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

Law = tuple[Fraction, ...]
Tree = Mapping[tuple[int, ...], Law]
Array = npt.NDArray[Any]
ArrayRule = Callable[[Array, Array, Array, Array], tuple[Array, Array]]


@dataclass(frozen=True)
class Cells:
    """[0, 1)^n cut into boxes inside which no decision may change."""

    points: tuple[Array, ...]
    weights: list[Fraction]


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


def output_law(
    rule: ArrayRule, draft: Tree, target: Tree, num_drafted: int
) -> dict[tuple[int, ...], Fraction]:
    """Joint law of the first k + 1 tokens of the output, the target completing short rounds."""
    vocab_size = len(target[()])
    result: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)
    for path in itertools.product(range(vocab_size), repeat=num_drafted):
        proposed = path_probability(draft, path)
        if not proposed:
            continue
        for emitted, weight in _integrate(rule, draft, target, path):
            tail = num_drafted + 1 - len(emitted)
            for rest in itertools.product(range(vocab_size), repeat=tail):
                full = emitted + rest
                result[full] += proposed * weight * path_probability(target, full, len(emitted))
    return {path: value for path, value in result.items() if value}


def _integrate(
    rule: ArrayRule, draft: Tree, target: Tree, path: tuple[int, ...]
) -> list[tuple[tuple[int, ...], Fraction]]:
    """Run the rule once in every cell: what it emitted and the cell's volume."""
    draft_laws = [draft[path[:i]] for i in range(len(path))]
    target_laws = [target[path[:i]] for i in range(len(path) + 1)]
    cells = _cells(draft_laws, target_laws, path)
    batch = len(cells.weights)
    draft_tokens = np.tile(np.array(path, dtype=np.int64), (batch, 1))
    draft_probs = np.tile(_floats(draft_laws, len(target_laws[0])), (batch, 1, 1))
    target_probs = np.tile(_floats(target_laws, len(target_laws[0])), (batch, 1, 1))
    runs = [rule(draft_tokens, draft_probs, target_probs, point) for point in cells.points]
    for tokens, counts in runs[1:]:
        # Else the cells are not those of this rule and their weights mean nothing.
        np.testing.assert_array_equal(tokens, runs[0][0])
        np.testing.assert_array_equal(counts, runs[0][1])
    tokens, counts = runs[0]
    return [
        (tuple(int(token) for token in row[:count]), weight)
        for row, count, weight in zip(tokens, counts, cells.weights, strict=True)
    ]


def _cells(draft_laws: list[Law], target_laws: list[Law], path: tuple[int, ...]) -> Cells:
    """Cut each uniform where the mathematical rule may change its mind.

    Every box is probed near its lower corner, in the middle and near its upper corner.
    """
    cuts = [
        [target_law[token] / draft_law[token]]
        for draft_law, target_law, token in zip(draft_laws, target_laws, path, strict=False)
    ]
    cuts.append(_following_cuts(draft_laws, target_laws))
    intervals = [_intervals(points) for points in cuts]
    boxes = list(itertools.product(*intervals))
    weights = [_volume(box) for box in boxes]
    points = tuple(
        np.array([[float(low + (high - low) * share) for low, high in box] for box in boxes])
        for share in (Fraction(1, 10**6), Fraction(1, 2), 1 - Fraction(1, 10**6))
    )
    return Cells(points, weights)


def _following_cuts(draft_laws: list[Law], target_laws: list[Law]) -> list[Fraction]:
    cuts: list[Fraction] = []
    for position, target_law in enumerate(target_laws):
        rows: list[Law] = [target_law]
        if position < len(draft_laws):
            pairs = zip(target_law, draft_laws[position], strict=True)
            rows.append(tuple(max(t - d, Fraction(0)) for t, d in pairs))
        for row in rows:
            total = sum(row, Fraction(0))
            if total:
                cuts.extend(value / total for value in itertools.accumulate(row))
    return cuts


def _intervals(cuts: list[Fraction]) -> list[tuple[Fraction, Fraction]]:
    inside = sorted({cut for cut in cuts if 0 < cut < 1} | {Fraction(0), Fraction(1)})
    return list(itertools.pairwise(inside))


def _volume(box: Sequence[tuple[Fraction, Fraction]]) -> Fraction:
    value = Fraction(1)
    for low, high in box:
        value *= high - low
    return value


def _floats(laws: list[Law], vocab_size: int) -> Array:
    rows = [[float(mass) for mass in law] for law in laws]
    return np.array(rows, dtype=np.float64).reshape(1, len(laws), vocab_size)
