"""The rows of one generation as arrays: committed tokens, sampling options, random numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spec_compile.runtime.requests import GenerationOptions
from spec_compile.runtime.uniforms import UniformStream


class Batch:
    """B rows side by side; the state from which every graph call is fed.

    Args:
        prompts: token ids of each row.
        options: sampling options, the same for all rows.
        seeds: one per row; each row has its own stream, so that it draws the same numbers in any
            batch.
        capacity: tokens that a row may hold, prompt and output together.
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        options: GenerationOptions,
        seeds: Sequence[int],
        capacity: int,
    ) -> None:
        rows = len(prompts)
        self.prompt_lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
        self.history: NDArray[np.int64] = np.zeros((rows, capacity), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            self.history[row, : len(prompt)] = prompt
        self.committed = self.prompt_lengths.copy()
        self.active: NDArray[np.int64] = np.ones(rows, dtype=np.int64)
        self.sampling = {
            "temperature": np.full(rows, options.temperature, dtype=np.float32),
            "top_k": np.full(rows, options.top_k, dtype=np.int64),
            "top_p": np.full(rows, options.top_p, dtype=np.float32),
            "min_p": np.full(rows, options.min_p, dtype=np.float32),
        }
        self._streams = [UniformStream(seed) for seed in seeds]
        self._draws = options.temperature > 0

    @property
    def num_rows(self) -> int:
        """B."""
        return len(self._streams)

    def commit(self, row: int, tokens: Sequence[int]) -> None:
        """Append kept tokens to a row."""
        start = int(self.committed[row])
        self.history[row, start : start + len(tokens)] = tokens
        self.committed[row] = start + len(tokens)

    def retire(self, row: int) -> None:
        """Let a row stand still from now on."""
        self.active[row] = 0

    def draw(self, uniforms: NDArray[np.float32], *, by_position: bool = False) -> None:
        """Fill `uniforms` [B, n] with numbers in [0, 1), each row from its own stream.

        Args:
            uniforms: where to put them.
            by_position: take the numbers that belong to the next n output tokens, instead of
                numbers that no round has seen.

        Greedy rows look at none: theirs stay as they are.
        """
        if not self._draws:
            return
        positions = (self.committed - self.prompt_lengths).tolist()
        for row, stream in enumerate(self._streams):
            if by_position:
                stream.fill_at(uniforms[row], positions[row])
            else:
                stream.fill(uniforms[row])


def prompt_feed(batch: Batch) -> dict[str, NDArray[np.int64]]:
    """`tokens`, `num_new` and `lengths` of the first call: whole prompts, padded to the longest."""
    width = int(batch.prompt_lengths.max())
    return {
        "tokens": np.ascontiguousarray(batch.history[:, :width]),
        "num_new": batch.prompt_lengths.copy(),
        "lengths": np.zeros_like(batch.prompt_lengths),
    }


class WindowFeed:
    """The same three tensors of later calls: the last tokens of each row, as many as `width`.

    `lengths = committed - num_new` is the rollback: what a graph wrote beyond it is overwritten.

    Args:
        batch: the rows to read from.
        width: most tokens that a call feeds again; 2 for a draft model, whose cache has a hole
            after a fully accepted block, 1 for a target.
    """

    def __init__(self, batch: Batch, width: int) -> None:
        self._batch, self._width = batch, width
        self._tokens = np.zeros((batch.num_rows, width), dtype=np.int64)
        self._num_new = np.zeros(batch.num_rows, dtype=np.int64)
        self._lengths = np.zeros(batch.num_rows, dtype=np.int64)
        self.buffers = {"tokens": self._tokens, "num_new": self._num_new, "lengths": self._lengths}

    def update(self) -> None:
        """Read the batch; a retired row gets zeros, which make it stand still."""
        # Item by item: between two calls of a large model each NumPy function is cold code, and
        # costs more than all the items of a few rows.
        batch, width = self._batch, self._width
        rows = zip(batch.committed.tolist(), batch.active.tolist(), strict=True)
        for row, (committed, active) in enumerate(rows):
            num_new = min(committed, width) * active
            start = (committed - num_new) * active
            self._num_new[row], self._lengths[row] = num_new, start
            # What lies behind a short row's tokens is zeros, which are fed and count for nothing.
            self._tokens[row] = batch.history[row, start : start + width] if active else 0
