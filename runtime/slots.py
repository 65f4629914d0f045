"""The rows of a running engine as slots: requests enter and leave while others go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_compile.runtime.requests import GenerationOptions
from spec_compile.runtime.uniforms import UniformStream


class Slots:
    """N rows side by side; what `Batch` is for rows that start together.

    Each row has its own sampling options and its own stream of random numbers, so that what it
    draws does not depend on who sits beside it.

    Args:
        num_slots: N.
        capacity: tokens that a row may hold, prompt and output together.

    Attributes:
        history: [N, capacity] int64, the committed tokens of each row.
        committed: [N] int64, how many they are.
        prompt_lengths: [N] int64.
        fed: [N] int64, tokens of a prompt that the caches hold already.
        started: [N] bool, whether the whole prompt has been fed, so that the row does rounds.
        sampling: temperature, top_k, top_p and min_p, [N] each.
    """

    def __init__(self, num_slots: int, capacity: int) -> None:
        self.history: NDArray[np.int64] = np.zeros((num_slots, capacity), dtype=np.int64)
        self.started = np.zeros(num_slots, dtype=np.bool_)
        self.committed, self.prompt_lengths, self.fed = (
            np.zeros(num_slots, dtype=np.int64) for _ in range(3)
        )
        self.sampling: dict[str, NDArray[Any]] = {
            "temperature": np.zeros(num_slots, dtype=np.float32),
            "top_k": np.zeros(num_slots, dtype=np.int64),
            "top_p": np.ones(num_slots, dtype=np.float32),
            "min_p": np.zeros(num_slots, dtype=np.float32),
        }
        self._draws = [False] * num_slots
        self._streams: list[UniformStream | None] = [None] * num_slots

    def __len__(self) -> int:
        return len(self._streams)

    def enter(
        self, slot: int, prompt: Sequence[int], options: GenerationOptions, seed: int
    ) -> None:
        """Seat a request in a free slot; its prompt is still to be fed."""
        self.history[slot, : len(prompt)] = prompt
        self.committed[slot] = self.prompt_lengths[slot] = len(prompt)
        self.fed[slot] = 0
        for name, values in self.sampling.items():
            values[slot] = getattr(options, name)
        self._streams[slot] = UniformStream(seed)
        self._draws[slot] = options.temperature > 0
        self.started[slot] = False

    def leave(self, slot: int) -> None:
        """Free a slot; greedy options cost an engine the least."""
        self.committed[slot] = self.prompt_lengths[slot] = self.fed[slot] = 0
        for name, value in (("temperature", 0.0), ("top_k", 0), ("top_p", 1.0), ("min_p", 0.0)):
            self.sampling[name][slot] = value
        self._streams[slot], self.started[slot] = None, False

    def move(self, source: int, target: int) -> None:
        """Let the request of slot `source` go on in the free slot `target`."""
        length = self.committed[source]
        self.history[target, :length] = self.history[source, :length]
        counts = (self.committed, self.prompt_lengths, self.fed, self.started)
        for values in (*counts, *self.sampling.values()):
            values[target] = values[source]
        self._streams[target] = self._streams[source]
        self._draws[target] = self._draws[source]
        self.leave(source)

    def is_occupied(self, slot: int) -> bool:
        """Whether a request sits there."""
        return self._streams[slot] is not None

    def start(self, slot: int) -> None:
        """Note that the whole prompt has been fed."""
        self.started[slot] = True

    def commit(self, slot: int, tokens: Sequence[int]) -> None:
        """Append kept tokens to a row."""
        start = int(self.committed[slot])
        self.history[slot, start : start + len(tokens)] = tokens
        self.committed[slot] = start + len(tokens)

    def draw(self, slot: int, uniforms: NDArray[np.float32], *, by_position: bool) -> None:
        """Fill `uniforms` [n] with numbers in [0, 1) from the row's stream; see `Batch.draw`.

        A greedy row looks at none: they stay as they are.
        """
        if not self._draws[slot]:
            return
        stream = self._streams[slot]
        assert stream is not None
        if by_position:
            stream.fill_at(uniforms, int(self.committed[slot] - self.prompt_lengths[slot]))
        else:
            stream.fill(uniforms)
