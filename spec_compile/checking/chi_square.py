"""Pearson's chi-square test in NumPy and the standard library."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_SMALLEST_EXPECTED = 5.0
_PRECISION = 1e-15
_TINY = 1e-300


class ChiSquare(NamedTuple):
    """Outcome of a test: the statistic, its cells after pooling, and its p-value."""

    statistic: float
    cells: int
    p_value: float


def chi_square(counts: NDArray[np.integer[Any]], law: NDArray[np.floating[Any]]) -> ChiSquare:
    """Test whether `counts` were drawn from `law`.

    Outcomes of which fewer than 5 are expected are pooled into one cell, and that cell with the
    rarest other one while it is still too small. An impossible outcome that occurred is p = 0.

    Args:
        counts: [V] how often each outcome occurred.
        law: [V] its probability; the sum need not be exactly 1.
    """
    if counts[law <= 0].any():
        return ChiSquare(math.inf, 0, 0.0)
    expected = law.astype(np.float64) * (counts.sum() / law.sum(dtype=np.float64))
    observed, expected = _pool(counts.astype(np.float64), expected)
    statistic = float(((observed - expected) ** 2 / expected).sum())
    cells = len(expected)
    return ChiSquare(statistic, cells, survival(statistic, cells - 1) if cells > 1 else 1.0)


def survival(statistic: float, degrees: int) -> float:
    """Probability that a chi-square variable with `degrees` degrees exceeds `statistic`.

    The regularised upper incomplete gamma function Q(degrees / 2, statistic / 2): its series below
    the mean, Lentz's continued fraction above (Press et al., Numerical Recipes, section 6.2).
    """
    shape, x = degrees / 2, statistic / 2
    if x <= 0:
        return 1.0
    if math.isinf(x):
        return 0.0
    front = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1:
        return max(0.0, 1.0 - front * _series(shape, x))
    return min(1.0, front * _continued_fraction(shape, x))


def _series(shape: float, x: float) -> float:
    term = total = 1 / shape
    for n in itertools.count(1):
        term *= x / (shape + n)
        total += term
        if term < total * _PRECISION:
            break
    return total


def _continued_fraction(shape: float, x: float) -> float:
    b = x + 1 - shape
    c, d = 1 / _TINY, 1 / b
    value = d
    for n in itertools.count(1):
        a = n * (shape - n)
        b += 2
        d = 1 / _away_from_zero(a * d + b)
        c = _away_from_zero(b + a / c)
        value *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def _pool(
    observed: NDArray[np.float64], expected: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    order = np.argsort(expected)[np.count_nonzero(expected <= 0) :]
    observed, expected = observed[order], expected[order]
    pooled = int(np.count_nonzero(expected < _SMALLEST_EXPECTED))
    while 0 < pooled < len(expected) and expected[:pooled].sum() < _SMALLEST_EXPECTED:
        pooled += 1
    if pooled == 0:
        return observed, expected
    return (
        np.append(observed[:pooled].sum(), observed[pooled:]),
        np.append(expected[:pooled].sum(), expected[pooled:]),
    )
