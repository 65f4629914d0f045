"""What a chi-square test of a given size is able to notice."""

from __future__ import annotations

import math
from collections.abc import Callable

from spec_compile.checking.chi_square import survival

_STEPS = 60
_NEGLIGIBLE = 1e-9


def smallest_noticed(samples: int, cells: int, level: float, power: float) -> float:
    """Total variation from which on a wrong law is noticed with probability `power` or more.

    The statistic of a wrong law follows the non-central chi-square law; its non-centrality is
    samples * sum((wrong - right)^2 / right), which is at least 4 * samples * variation^2
    (Cauchy-Schwarz). Both laws are those of the pooled cells.

    Args:
        samples: outcomes that the test is over.
        cells: their kinds, after pooling; 2 or more.
        level: probability that a right law is rejected.
        power: wanted probability that a wrong one is, above `level`.
    """
    degrees = cells - 1
    critical = _solve(lambda x: -survival(x, degrees), -level)
    offset = _solve(lambda shift: noncentral_survival(critical, degrees, shift), power)
    return min(1.0, 0.5 * math.sqrt(offset / samples))


def noncentral_survival(statistic: float, degrees: int, offset: float) -> float:
    """Probability that a non-central chi-square variable exceeds `statistic`.

    A Poisson mixture of central ones with two more degrees each (Johnson, Kotz and Balakrishnan,
    Continuous Univariate Distributions, volume 2, chapter 29).
    """
    mean = offset / 2
    total, reach = 0.0, 12 * math.sqrt(mean) + 12
    for count in range(max(0, int(mean - reach)), int(mean + reach) + 1):
        weight = math.exp(count * math.log(mean) - mean - math.lgamma(count + 1)) if mean else 1.0
        if weight > _NEGLIGIBLE:
            total += weight * survival(statistic, degrees + 2 * count)
        if not mean:
            break
    return total


def _solve(rising: Callable[[float], float], wanted: float) -> float:
    """Where the function `rising` of a positive number reaches `wanted`."""
    high = 1.0
    while rising(high) < wanted:
        high *= 2
    low = 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return high
