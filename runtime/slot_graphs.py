"""The graphs of a bundle over a range of slots: buffers made once, a binding for each shape."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_compile.graph_contract import GRAPHS_OF_FUSION
from spec_compile.manifest import GraphSpec, Manifest
from spec_compile.runtime.calls import cache_buffers, output_buffers, uniforms_width, window_of
from spec_compile.runtime.engine import Engine, Run
from spec_compile.runtime.slot_plan import Call
from spec_compile.runtime.slots import Slots

_MOST_BOUND = 128  # bindings kept; each length of a prompt's last part makes one


@dataclass(frozen=True)
class _Bound:
    run: Run
    tokens: NDArray[np.int64]  # [rows, T]
    places: tuple[NDArray[np.int64], NDArray[np.int64]]  # slots [rows, 1], steps [T]


class SlotGraphs:
    """Runs calls over slots; a call is bound to a view of the rows that it is about.

    Args:
        engine: runs the graphs.
        manifest: the bundle's contract.
        slots: the rows; read, and `fed` is updated.
        speculative: False runs the `target` graph alone.

    Attributes:
        output_tokens: [N, k + 1] int64, what each row emitted in its last call.
        num_emitted: [N] int64.
        num_speculative_tokens: k, or 0 for the target alone.
        window: most tokens that a round feeds again.
    """

    output_tokens: NDArray[np.int64]
    num_emitted: NDArray[np.int64]

    def __init__(
        self, engine: Engine, manifest: Manifest, slots: Slots, *, speculative: bool
    ) -> None:
        config, rows = manifest.config, len(slots)
        fused = [name for name in GRAPHS_OF_FUSION[config.fusion] if name != "target"]
        names = fused if speculative else ["target"]
        specs = [manifest.graphs[name] for name in names]
        self.num_speculative_tokens = config.num_speculative_tokens if speculative else 0
        self._slots, self._max_length = slots, config.max_length
        self._by_position = config.draws_by_position
        self._drawn = np.zeros((rows, sum(map(uniforms_width, specs))), dtype=np.float32)
        self._graphs: list[_Graph] = []
        shared: dict[str, Any] = dict(slots.sampling)
        column = 0
        for name, spec in zip(names, specs, strict=True):
            length = config.num_speculative_tokens
            outputs = output_buffers(engine, spec, rows, length=length, skipped=("logits",))
            shared.update(outputs)
            columns = slice(column, column + uniforms_width(spec))
            column = columns.stop
            buffers = {**shared, **cache_buffers(engine, spec, rows)}
            window = window_of(name, config)
            self._graphs.append(_Graph(engine, name, spec, buffers, window, columns))
        self.window = max(graph.window for graph in self._graphs)
        self.output_tokens, self.num_emitted = shared["output_tokens"], shared["num_emitted"]

    def open(self) -> None:
        """Open every graph, so that the first call need not."""
        for graph in self._graphs:
            graph.bound(0, 1, graph.window)

    def draw(self, slot: int) -> None:
        """Draw the random numbers of a row's next round, once a round however often it is run."""
        if self._drawn.size:
            self._slots.draw(slot, self._drawn[slot], by_position=self._by_position)

    def run(self, call: Call) -> None:
        """Feed, and compute `output_tokens` and `num_emitted` of the call's slots.

        Raises:
            ArtifactError: a graph is damaged.
            BackendError: the engine fails.
        """
        widths = self._widths(call)
        self._roll_back(call, max(widths))
        for graph, width in zip(self._graphs, widths, strict=True):
            bound = graph.bound(call.first, call.last, width)
            self._feed(graph, call, bound)
            graph.uniforms[call.first : call.last] = self._drawn[
                call.first : call.last, graph.columns
            ]
            bound.run()
        for slot, end in call.ends.items():
            self._slots.fed[slot] = end

    def move(self, source: int, target: int) -> None:
        """Copy what the caches hold of a row into another one."""
        used = int(self._slots.committed[source])
        for graph in self._graphs:
            for cache in graph.caches:
                cache[target, :, :used] = cache[source, :, :used]

    def wipe(self, slot: int) -> None:
        """Zero a row's caches: a NaN left there would spoil the row's next request."""
        for graph in self._graphs:
            for cache in graph.caches:
                cache[slot] = 0

    def _widths(self, call: Call) -> list[int]:
        """T of each graph."""
        if not call.ends:
            return [graph.window for graph in self._graphs]
        parts = [end - int(self._slots.fed[slot]) for slot, end in call.ends.items()]
        width = max(parts + [self.window] * bool(call.running))
        return [width] * len(self._graphs)

    def _roll_back(self, call: Call, width: int) -> None:
        """A call writes T entries behind each row's length, also into rows that stand still: a
        prompt so near the end that they would not fit is fed again from where they do.
        """
        fed = self._slots.fed[call.first : call.last]
        np.minimum(fed, self._max_length - width, out=fed)

    def _feed(self, graph: _Graph, call: Call, bound: _Bound) -> None:
        """Each row is fed what lies between `start` and `end` of its history."""
        slots, width = self._slots, bound.tokens.shape[1]
        starts = slots.fed[call.first : call.last].copy()
        ends = starts.copy()  # a row that stands still is fed nothing
        if call.running:
            running = np.array(call.running)
            committed = slots.committed[running]
            ends[running - call.first] = committed
            # T entries are written behind the start, and must fit there.
            latest = np.minimum(committed - graph.window, self._max_length - width)
            starts[running - call.first] = np.maximum(latest, 0)
        for slot, end in call.ends.items():
            ends[slot - call.first] = end
        graph.lengths[call.first : call.last] = starts
        graph.num_new[call.first : call.last] = ends - starts
        # What lies behind a row's end counts for nothing.
        rows, steps = bound.places
        columns = np.minimum(starts[:, None] + steps, self._max_length - 1)
        bound.tokens[:] = slots.history[rows, columns]


class _Graph:
    """One graph: its buffers over all slots, and its bindings to ranges of them."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        spec: GraphSpec,
        buffers: dict[str, Any],
        window: int,
        columns: slice,
    ) -> None:
        self._engine, self._name = engine, name
        self.window, self.columns = window, columns
        rows = len(buffers["temperature"])
        self.num_new, self.lengths = (np.zeros(rows, dtype=np.int64) for _ in range(2))
        self.uniforms = np.zeros((rows, columns.stop - columns.start), dtype=np.float32)
        self.caches = [buffers[cache.name] for cache in spec.caches]
        own = {"num_new": self.num_new, "lengths": self.lengths, "uniforms": self.uniforms}
        self._buffers = {**buffers, **own}
        self._bound: OrderedDict[tuple[int, int, int], _Bound] = OrderedDict()

    def bound(self, first: int, last: int, width: int) -> _Bound:
        """The graph bound to slots `first` to `last` - 1, fed `width` tokens each."""
        key = (first, last, width)
        if key in self._bound:
            self._bound.move_to_end(key)
            return self._bound[key]
        if len(self._bound) >= _MOST_BOUND:
            self._bound.popitem(last=False)
        tokens = np.zeros((last - first, width), dtype=np.int64)
        views = {name: buffer[first:last] for name, buffer in self._buffers.items()}
        run = self._engine.bind(self._name, {**views, "tokens": tokens})
        places = (np.arange(first, last)[:, None], np.arange(width))
        return self._bound.setdefault(key, _Bound(run, tokens, places))
