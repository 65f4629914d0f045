"""The random numbers of one row: a Philox stream of its own, the same in any batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_AHEAD = 1024  # numbers drawn at a time: one call of the generator serves many rounds


class UniformStream:
    """Numbers in [0, 1) from a seed.

    Args:
        seed: any whole number of at least 0.
    """

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(seed))
        self._drawn = np.zeros(_AHEAD, dtype=np.float32)
        self._taken = _AHEAD
        self._window = np.zeros(0, dtype=np.float32)
        self._position = 0

    def fill(self, uniforms: NDArray[np.float32]) -> None:
        """Fill `uniforms` [n] with the next n numbers."""
        wanted, filled = len(uniforms), 0
        while filled < wanted:
            if self._taken == _AHEAD:
                self._generator.random(dtype=np.float32, out=self._drawn)
                self._taken = 0
            count = min(wanted - filled, _AHEAD - self._taken)
            uniforms[filled : filled + count] = self._drawn[self._taken : self._taken + count]
            filled, self._taken = filled + count, self._taken + count

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
