"""What a mask lets a query see, proven on the mask's own arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from spec_compile.export.cpu.cached_attention import CachedAttention
from spec_compile.export.cpu.evaluate import NotAFunctionOfPositions, evaluate, sample_positions


@dataclass(frozen=True)
class Visible:
    """What every query sees.

    Args:
        past_only: nothing behind its own position.
        all_past: everything up to its own position.
        reason: why not, in words; empty when both hold.
    """

    past_only: bool
    all_past: bool
    reason: str = ""

    @property
    def causal(self) -> bool:
        """Exactly its own position and all before it."""
        return self.past_only and self.all_past


class Masks:
    """Looks at each mask of one graph once."""

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self._known: dict[ir.Value, Visible] = {}

    def __call__(self, attention: CachedAttention) -> Visible:
        """What queries of `attention` see of the caches."""
        if attention.mask not in self._known:
            self._known[attention.mask] = self._look(attention)
        return self._known[attention.mask]

    def _look(self, attention: CachedAttention) -> Visible:
        positions = sample_positions(attention, attention.slots)
        try:
            mask = evaluate(attention.mask, attention, positions)
        except NotAFunctionOfPositions as error:
            return Visible(False, False, f"its mask is not of positions alone: {error}")
        queries = positions.of_queries()
        if mask.dtype != np.bool_ or mask.ndim != 4 or mask.shape[1] != 1:
            return Visible(False, False, "its mask is not one boolean for all heads")
        mask = np.broadcast_to(mask, (len(queries), 1, positions.num_new, attention.slots))[:, 0]
        slots = np.arange(attention.slots)
        # Queries behind max_length belong to tokens that are thrown away.
        kept = queries < self.max_length
        mask, past = mask[kept], slots <= queries[kept][:, None]
        past_only, all_past = not bool((mask & ~past).any()), bool((mask | ~past).all())
        reason = "" if past_only and all_past else "its mask is not plainly causal"
        return Visible(past_only, all_past, reason)
