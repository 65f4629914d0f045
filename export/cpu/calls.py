"""Calls of a round to compute a mask for, where row lengths alone do not say what it shows.

Several drafts of a row lie step by step behind its committed tokens. What a query may see then
depends on two inputs of the graph: how many entries a row holds, `lengths`, and how many of its T
tokens are real, `num_new`. The other tokens pad the row; a row with none stands still.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from spec_compile.export.cpu.cached_attention import CachedAttention, sizes_of
from spec_compile.export.cpu.evaluate import (
    NotAFunctionOfPositions,
    compute,
    extra_tokens,
    sizes_of_call,
)

# T of the calls that are looked at: rounds, and a prompt that leaves other rows much padding.
_NUM_TOKENS = (1, 3, 20)
_MOST_COUNTS = 5
_MAX_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class Calls:
    """One row for each pair of `lengths` and `num_new` that is looked at.

    Args:
        lengths: [n] int64, the graph's input.
        num_new: [n] int64, the graph's input, at most T.
        num_tokens: T.
        with_drafts: the model reads drafts too, or nothing else.
    """

    lengths: NDArray[np.int64]
    num_new: NDArray[np.int64]
    num_tokens: int
    with_drafts: bool

    def kept(self, queries: NDArray[np.int64], max_length: int) -> NDArray[np.bool_]:
        """Which queries count, given the slots [n, fed] of their entries.

        Of new tokens alone, padding and what stands behind `max_length` are thrown away. Among
        drafts every query counts: those of few positions take many slots.
        """
        if self.with_drafts:
            return np.ones(queries.shape, dtype=np.bool_)
        real = np.arange(self.num_tokens) < self.num_new[:, None]
        return real & (queries < max_length)


def sample_calls(attention: CachedAttention, width: int) -> list[Calls]:
    """Lengths from 0 to the last that fits, each with no, one, some and all T tokens real.

    Args:
        attention: whose calls.
        width: elements of the computed value per token.

    Raises:
        NotAFunctionOfPositions: not even the shortest call fits the caches.
    """
    sampled = []
    for num_tokens in _NUM_TOKENS:
        fed = _tokens_fed(attention, num_tokens)
        # A later call of a draft loop writes behind the T tokens of the first.
        last = attention.slots - fed - (0 if _feeds_new_tokens(attention) else num_tokens)
        if last >= 0:
            counts = _spread(num_tokens, _MOST_COUNTS)
            lengths = _spread(last, max(2, _MAX_ELEMENTS // (fed * width * len(counts))))
            grid = np.meshgrid(lengths, counts, indexing="ij")
            drafts = extra_tokens(attention) > 0 or not _feeds_new_tokens(attention)
            sampled.append(Calls(grid[0].ravel(), grid[1].ravel(), num_tokens, drafts))
    if not sampled:
        raise NotAFunctionOfPositions("no call fits its caches")
    return sampled


def evaluate_calls(
    value: ir.Value, attention: CachedAttention, calls: Calls
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """`value` for `calls`, and the slots [n, fed] that the tokens of `attention` are written to.

    Raises:
        NotAFunctionOfPositions: it depends on more than `lengths` and `num_new`.
    """
    graph = attention.node.graph
    assert isinstance(graph, ir.Graph)
    inputs = {str(each.name): each for each in graph.inputs}
    if not {"lengths", "num_new"} <= inputs.keys():
        raise NotAFunctionOfPositions("the graph has no inputs `lengths` and `num_new`")
    given = {inputs["lengths"]: calls.lengths, inputs["num_new"]: calls.num_new}
    fed = _tokens_fed(attention, calls.num_tokens)
    sizes = sizes_of_call(attention, len(calls.lengths), fed)
    computed, lengths = compute([value, attention.lengths], given, sizes)
    return computed, lengths[:, None] + np.arange(fed)


def reads_drafts_side_by_side(attention: CachedAttention) -> bool:
    """Whether this call of the model reads one token each of several drafts, and nothing else."""
    return not _feeds_new_tokens(attention) and extra_tokens(attention) > 0


def _feeds_new_tokens(attention: CachedAttention) -> bool:
    """Whether the T new tokens of a round are among those that this call of the model reads."""
    return isinstance(sizes_of(attention.new_keys)[2], str)


def _tokens_fed(attention: CachedAttention, num_tokens: int) -> int:
    """Tokens of a row that this call of the model reads in a round of T = `num_tokens`."""
    if _feeds_new_tokens(attention):
        return num_tokens + extra_tokens(attention)
    return extra_tokens(attention) + 1


def _spread(last: int, count: int) -> NDArray[np.int64]:
    """Up to `count` whole numbers from 0 to `last`, both included."""
    return np.unique(np.linspace(0, last, min(last + 1, count)).round().astype(np.int64))
