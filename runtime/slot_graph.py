"""One graph over a range of slots: its buffers, and a binding for each shape it runs in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_compile.manifest import GraphSpec
from spec_compile.runtime.engine import Engine, Run
from spec_compile.runtime.slots import Slots

_MOST_BOUND = 128  # bindings kept; each length of a prompt's last part makes one


@dataclass(frozen=True)
class Bound:
    """A graph bound to rows, a width T and a number of draft tokens; views of its inputs.

    Args:
        run: runs it.
        tokens: [rows, T].
        lengths: [rows].
        num_new: [rows].
        uniforms: [rows, n].
        drawn: [rows, n], where they are drawn.
        token_rows: the rows of `tokens`.
        histories: what has been committed to each row.
    """

    run: Run
    tokens: NDArray[np.int64]
    lengths: NDArray[np.int64]
    num_new: NDArray[np.int64]
    uniforms: NDArray[np.float32]
    drawn: NDArray[np.float32]
    token_rows: Sequence[NDArray[np.int64]]
    histories: Sequence[NDArray[np.int64]]


class SlotGraph:
    """A graph and its buffers over all slots.

    Args:
        engine: runs it.
        name: of the graph in the bundle.
        spec: its tensors.
        slots: the rows; read.
        buffers: its tensors over all slots, caches included, but for those of `bound`.
        window: most tokens that a round feeds again.
        drawn: [N, n], its random numbers of a round, a view of what is drawn for all graphs.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        spec: GraphSpec,
        slots: Slots,
        buffers: Mapping[str, Any],
        window: int,
        drawn: NDArray[np.float32],
    ) -> None:
        self._engine, self._name, self._slots = engine, name, slots
        self.window, self._drawn = window, drawn
        self._any_length = spec.takes_any_length
        rows = len(slots)
        self._inputs: dict[str, NDArray[Any]] = {
            "num_new": np.zeros(rows, dtype=np.int64),
            "lengths": np.zeros(rows, dtype=np.int64),
            "uniforms": np.zeros(drawn.shape, dtype=np.float32),
        }
        self.caches = [buffers[cache.name] for cache in spec.caches]
        self._buffers = {**buffers, **self._inputs}
        self._bound: OrderedDict[tuple[int, int, int, int], Bound] = OrderedDict()

    def bound(
        self, first: int, last: int, width: int, length: int, buffers: Mapping[str, Any]
    ) -> Bound:
        """The graph bound to slots `first` to `last` - 1.

        Args:
            first: the lowest slot.
            last: one above the highest.
            width: tokens that each row is fed.
            length: number of draft tokens.
            buffers: over all slots, the same ones for the same `length`.
        """
        key = (first, last, width, length if self._any_length else 0)
        if key in self._bound:
            self._bound.move_to_end(key)
            return self._bound[key]
        if len(self._bound) >= _MOST_BOUND:
            self._bound.popitem(last=False)
        tokens = np.zeros((last - first, width), dtype=np.int64)
        views = {name: buffer[first:last] for name, buffer in {**self._buffers, **buffers}.items()}
        run = self._engine.bind(self._name, {**views, "tokens": tokens})
        inputs = {name: values[first:last] for name, values in self._inputs.items()}
        histories = list(self._slots.history[first:last])
        drawn = self._drawn[first:last]
        made = Bound(
            run, tokens, **inputs, drawn=drawn, token_rows=list(tokens), histories=histories
        )
        return self._bound.setdefault(key, made)

    def run(self, bound: Bound, starts: Sequence[int], ends: Sequence[int]) -> None:
        """Run over what lies between the start and the end of each row's history.

        Args:
            bound: what `bound` gave.
            starts: of each row; T tokens from there on are inside the history.
            ends: of each row; one whose end is its start stands still.
        """
        # Few and simple NumPy calls: between two runs of a model all code is cold.
        bound.lengths[:] = starts
        bound.num_new[:] = [end - start for start, end in zip(starts, ends, strict=True)]
        width = bound.tokens.shape[1]
        for tokens, history, start in zip(bound.token_rows, bound.histories, starts, strict=True):
            # What lies behind a row's end counts for nothing.
            tokens[:] = history[start : start + width]
        if bound.drawn.size:
            bound.uniforms[:] = bound.drawn
        bound.run()
