"""Drafting without a model: what followed the last tokens when they stood in the text before.

Prompt lookup (Saxena 2023). Of the n-grams that end the text and have stood in it before, the
longest is taken, at its most recent place, and what followed there is proposed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_compile.runtime.batch import Batch
from spec_compile.runtime.calls import int64_zeros

NOTHING = -1
"""A draft token that proposes nothing: it fills up rows, and no rule accepts it."""


class NgramIndex:
    """The text of one row, and where each of its n-grams was last followed by something.

    Adding a token and looking one up cost the same at any length of the text.

    Args:
        shortest: fewest tokens of an n-gram that is looked for, at least 1.
        longest: most of them.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._tokens: list[int] = []
        self._places: dict[tuple[int, ...], int] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            end = len(self._tokens)
            for size in self._sizes:
                if size <= end:
                    self._places[tuple(self._tokens[end - size :])] = end
            self._tokens.append(token)

    def propose(self, most: int) -> list[int]:
        """`most` tokens that may come next; none when no n-gram stood in the text before.

        A place near the end is followed by less than `most` tokens. The text is then taken to
        repeat itself: the proposal goes on with its own first tokens.
        """
        for size in self._sizes:
            place = self._places.get(tuple(self._tokens[-size:]))
            if place is not None and size <= len(self._tokens):
                found = self._tokens[place : place + most]
                return [found[index % len(found)] for index in range(most)]
        return []


class PromptLookup:
    """Prompt lookup over each row's own text; a `Drafter`.

    Args:
        batch: the rows.
        num_speculative_tokens: k.
        sizes: shortest and longest n-gram.
    """

    def __init__(self, batch: Batch, num_speculative_tokens: int, sizes: tuple[int, int]) -> None:
        self._batch, self._most = batch, num_speculative_tokens
        self._indices = [NgramIndex(*sizes) for _ in range(batch.num_rows)]
        self._proposals: list[list[int]] = [[] for _ in range(batch.num_rows)]
        self._tokens: dict[int, NDArray[np.int64]] = {}

    def available(self) -> list[int]:
        """k or none for each row; none for one that has ended."""
        batch = self._batch
        rows = zip(self._indices, batch.committed.tolist(), batch.active.tolist(), strict=True)
        for row, (index, committed, active) in enumerate(rows):
            if active:
                index.extend(batch.history[row, len(index) : committed].tolist())
            self._proposals[row] = index.propose(self._most) if active else []
        return [len(found) for found in self._proposals]

    def buffers(self, length: int) -> Mapping[str, Any]:
        """`draft_tokens` [B, length]."""
        if length not in self._tokens:
            self._tokens[length] = int64_zeros(self._batch.num_rows, length)
        return {"draft_tokens": self._tokens[length]}

    def propose(self, length: int) -> bool:
        """Fill `buffers(length)` with what `available` found."""
        tokens: NDArray[np.int64] = self.buffers(length)["draft_tokens"]
        tokens.fill(NOTHING)
        for row, found in enumerate(self._proposals):
            tokens[row, : len(found)] = found[:length]
        return True
