"""What a rule asks of its uniforms, so that one text of it serves numbers and proofs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

Weights = Sequence[Any]
"""[V] floats or fractions."""


class Decisions(Protocol):
    """Answers with the uniforms of one row."""

    def less(self, index: int, factor: Any, bound: Any) -> bool:
        """Whether uniform number `index` times `factor` is below `bound`."""

    def draw(self, index: int, weights: Weights) -> int:
        """A token by the inverse of the cumulative weights at uniform number `index`."""


class UniformDecisions:
    """Decisions of given numbers."""

    def __init__(self, uniforms: Sequence[float]) -> None:
        self.uniforms = uniforms

    def less(self, index: int, factor: Any, bound: Any) -> bool:
        """See `Decisions.less`."""
        return bool(self.uniforms[index] * factor < bound)

    def draw(self, index: int, weights: Weights) -> int:
        """See `Decisions.draw`; never a token without mass."""
        values = np.asarray(weights)
        cumulative = np.cumsum(values, dtype=np.float64)
        positive = values > 0
        reached = positive & (cumulative > float(self.uniforms[index]) * cumulative[-1])
        if reached.any():
            return int(np.argmax(reached))
        return int(np.flatnonzero(positive)[-1]) if positive.any() else 0
