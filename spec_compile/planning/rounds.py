"""From chances of acceptance to the number of rounds that a text takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spec_compile.planning.observation import Chances


class Efficiency(NamedTuple):
    """Block efficiency of a rule over several texts.

    Attributes:
        num_rounds: expected rounds for all texts together.
        block_efficiency: tokens over rounds.
        standard_error: of the block efficiency, from its spread over the texts; 0 for one text.
    """

    num_rounds: float
    block_efficiency: float
    standard_error: float


def expected_rounds(survival: Chances) -> float:
    """Rounds that it takes to emit a text, the last of them cut at its end.

    A round that begins at position t and accepts i draft tokens is followed by one at t + i + 1.

    Args:
        survival: [N, k + 1], see `RuleModel.survival`.
    """
    size, width = survival.shape
    ends = survival - np.concatenate([survival[:, 1:], np.zeros((size, 1))], axis=1)
    starts = np.zeros(size + width)
    starts[0] = 1.0
    for position in range(size):
        starts[position + 1 : position + 1 + width] += starts[position] * ends[position]
    return float(starts[:size].sum())


def efficiency(survivals: Sequence[Chances]) -> Efficiency:
    """Block efficiency over texts of equal length.

    Args:
        survivals: [N, k + 1] of each text.
    """
    rounds = np.array([expected_rounds(one) for one in survivals])
    tokens = sum(len(one) for one in survivals)
    value = tokens / float(rounds.sum())
    spread = float(rounds.std(ddof=1)) if len(rounds) > 1 else 0.0
    error = value * spread / float(rounds.mean()) / math.sqrt(len(rounds))
    return Efficiency(float(rounds.sum()), value, error)
