"""The random numbers of one row: a Philox stream of its own, the same in any batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class UniformStream:
    """Numbers in [0, 1) from a seed.

    Args:
        seed: any whole number of at least 0.
    """

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(seed))
        self._window = np.zeros(0, dtype=np.float32)
        self._position = 0

    def fill(self, uniforms: NDArray[np.float32]) -> None:
        """Fill `uniforms` [n] with the next n numbers."""
        self._generator.random(dtype=np.float32, out=uniforms)

    def fill_at(self, uniforms: NDArray[np.float32], position: int) -> None:
        """Fill `uniforms` [n] with the numbers of output tokens `position` .. `position` + n - 1.

        Number i of the stream belongs to output token i, however many tokens each round emits.

        Args:
            uniforms: as many numbers in every call.
            position: tokens emitted so far; 0 to n more than in the last call, 0 in the first.
        """
        count = len(uniforms)
        if len(self._window) != count:
            self._window, self._position = np.zeros(count, dtype=np.float32), -count
        moved = position - self._position
        kept = count - moved
        self._window[:kept] = self._window[moved:].copy()
        self.fill(self._window[kept:])
        self._position = position
        uniforms[:] = self._window
