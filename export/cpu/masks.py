"""What a mask lets a query see, proven on the mask's own arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from spec_compile.export.cpu.cached_attention import CachedAttention
from spec_compile.export.cpu.calls import (
    evaluate_calls,
    reads_drafts_side_by_side,
    sample_calls,
)
from spec_compile.export.cpu.evaluate import NotAFunctionOfPositions, evaluate, sample_positions


@dataclass(frozen=True)
class Visible:
    """What every query sees.

    Args:
        past_only: nothing behind the slot of its own entry.
        all_past: everything up to the slot of its own entry.
        reason: why not, in words; empty when both hold.
    """

    past_only: bool
    all_past: bool
    reason: str = ""

    @property
    def causal(self) -> bool:
        """Exactly the slot of its own entry and all before it."""
        return self.past_only and self.all_past


class Masks:
    """Looks at each mask of one graph once."""

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self._known: dict[tuple[ir.Value, ir.Value], Visible] = {}

    def __call__(self, attention: CachedAttention) -> Visible:
        """What queries of `attention` see of the caches."""
        key = (attention.mask, attention.lengths)
        if key not in self._known:
            self._known[key] = self._look(attention)
        return self._known[key]

    def _look(self, attention: CachedAttention) -> Visible:
        reason = ""
        for views in (self._by_length, self._by_call):
            try:
                found = list(views(attention))
            except NotAFunctionOfPositions as error:
                reason = f"its mask is not of positions alone: {error}"
                continue
            past_only, all_past = (all(each) for each in zip(*found, strict=True))
            reason = "" if past_only and all_past else "its mask is not plainly causal"
            return Visible(past_only, all_past, reason)
        return Visible(False, False, reason)

    def _by_length(self, attention: CachedAttention) -> Iterator[tuple[bool, bool]]:
        """`past_only` and `all_past` of a mask that follows from the entries a row holds."""
        positions = sample_positions(attention, attention.slots)
        mask = evaluate(attention.mask, attention, positions)
        queries = positions.of_queries()
        past_only, all_past = _views(mask, queries, attention.slots)
        # Tokens behind max_length are thrown away; drafts side by side take more slots than that.
        kept = (queries < self.max_length) | reads_drafts_side_by_side(attention)
        yield bool(past_only[kept].all()), bool(all_past[kept].all())

    def _by_call(self, attention: CachedAttention) -> Iterator[tuple[bool, bool]]:
        """The same of a mask that asks which tokens are real too, as those of several drafts do."""
        for calls in sample_calls(attention, attention.slots):
            mask, queries = evaluate_calls(attention.mask, attention, calls)
            past_only, all_past = _views(mask, queries, attention.slots)
            kept = calls.kept(queries, self.max_length)
            # Nor may padding see ahead: then nothing that a call computes changes.
            yield bool(past_only.all()), bool(all_past[kept].all())


def _views(
    mask: NDArray[Any], queries: NDArray[np.int64], slots: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each query [n, T] sees nothing behind its own slot, and all that is before it."""
    if mask.dtype != np.bool_ or mask.ndim != 4 or mask.shape[1] != 1:
        raise NotAFunctionOfPositions("it is not one boolean for all heads")
    shown = np.broadcast_to(mask, (len(queries), 1, queries.shape[1], slots))[:, 0]
    past = np.arange(slots) <= queries[..., None]
    ahead, missing = shown & ~past, past & ~shown
    return ~np.any(ahead, axis=-1), ~np.any(missing, axis=-1)
