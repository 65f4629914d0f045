"""Cosines and sines as a table by position, found by computing them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from spec_compile.export.cpu.cached_attention import CachedAttention
from spec_compile.export.cpu.calls import Calls, evaluate_calls, sample_calls
from spec_compile.export.cpu.evaluate import NotAFunctionOfPositions, all_positions, evaluate


def rows_by_position(
    attention: CachedAttention, value: ir.Value, max_length: int
) -> NDArray[Any] | None:
    """Rows of `value` [B, T, R/2] by the slot of their token, [S, R/2].

    Args:
        attention: whose tokens.
        value: what is computed for each of them.
        max_length: tokens a row may hold; later ones do not count.

    Returns:
        None where slots are not all that `value` depends on.
    """
    for table in (_by_length, _by_call):
        try:
            return table(attention, value, max_length)
        except NotAFunctionOfPositions:
            continue
    return None


def _by_length(attention: CachedAttention, value: ir.Value, max_length: int) -> NDArray[Any] | None:
    positions = all_positions(attention)
    rows = evaluate(value, attention, positions)
    if not _is_table(rows, attention.slots):
        return None
    table = np.ascontiguousarray(rows[:, 0])
    queries = positions.of_queries()
    kept = queries < max_length
    return table if np.array_equal(rows[kept], table[queries[kept]]) else None


def _by_call(attention: CachedAttention, value: ir.Value, max_length: int) -> NDArray[Any] | None:
    every = np.arange(attention.slots, dtype=np.int64)
    alone = Calls(every, np.ones_like(every), num_tokens=1, with_drafts=False)
    rows, _ = evaluate_calls(value, attention, alone)
    if not _is_table(rows, attention.slots):
        return None
    table = np.ascontiguousarray(rows[:, 0])
    for calls in sample_calls(attention, table.shape[1]):
        rows, queries = evaluate_calls(value, attention, calls)
        kept = calls.kept(queries, max_length)
        if calls.with_drafts or not np.array_equal(rows[kept], table[queries[kept]]):
            return None
    return table


def _is_table(rows: NDArray[Any], slots: int) -> bool:
    return rows.ndim == 3 and rows.shape[0] == slots and rows.dtype == np.float32
