"""One graph over the rows of a generation: its buffers, and a binding for each shape it runs in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_compile.manifest import BundleConfig, GraphSpec
from spec_compile.runtime.batch import Batch, WindowFeed, prompt_feed
from spec_compile.runtime.engine import Engine, Run

PROMPT = 0
"""The width of a call that is fed whole prompts."""

# Tokens that a later call feeds again. A draft model proposes k tokens but reads only k - 1 of
# them, so a fully accepted block leaves a hole of one in its cache; the target reads them all.
_WINDOWS = {"draft": 2, "verify": 1, "step": 2, "target": 1}
_MOST_BOUND = 64  # bindings kept: a draft that catches up makes one for each number of tokens
_READ_BY_HOST = ("output_tokens", "num_emitted", "logits")
_NO_BUFFERS: Mapping[str, Any] = MappingProxyType({})


class GraphCall:
    """Feeds a graph the last tokens of each row, and runs it.

    Args:
        engine: runs the graph.
        name: of the graph in the bundle.
        batch: the rows; `run` reads them.
        buffers: for its tensors, caches included; those that `run` is given come on top.
    """

    def __init__(self, engine: Engine, name: str, batch: Batch, buffers: Mapping[str, Any]) -> None:
        self._engine, self._name, self._batch = engine, name, batch
        self._buffers = dict(buffers)
        self._feeds: dict[int, WindowFeed] = {}
        self._runs: dict[tuple[int, int], Run] = {}

    def bind(self, width: int, variant: int = 0, buffers: Mapping[str, Any] = _NO_BUFFERS) -> None:
        """Make what `run` needs, so that it opens no graph; arguments as `run`."""
        if (width, variant) in self._runs:
            return
        if len(self._runs) >= _MOST_BOUND:
            self._runs.clear()
            self._feeds.clear()
        if width == PROMPT:
            feed = prompt_feed(self._batch)
        else:
            feed = self._feeds.setdefault(width, WindowFeed(self._batch, width)).buffers
        self._runs[width, variant] = self._engine.bind(
            self._name, {**self._buffers, **feed, **buffers}
        )

    def run(self, width: int, variant: int = 0, buffers: Mapping[str, Any] = _NO_BUFFERS) -> None:
        """Run once.

        Args:
            width: committed tokens to feed again, or PROMPT.
            variant: tells apart the `buffers` of several calls; the same ones under one number.
            buffers: tensors that differ from call to call.
        """
        if (width, variant) not in self._runs:
            self.bind(width, variant, buffers)
        if width != PROMPT:
            self._feeds[width].update()
        self._runs[width, variant]()


class RoundUniforms:
    """The random numbers of a round: one draw per row, shared out to the graphs in order."""

    def __init__(self, graphs: Sequence[GraphSpec], batch: Batch, config: BundleConfig) -> None:
        rows, widths = batch.num_rows, [uniforms_width(graph) for graph in graphs]
        self._batch, self._by_position = batch, config.draws_by_position
        self._drawn = np.zeros((rows, sum(widths)), dtype=np.float32)
        ends = np.cumsum(widths).tolist()
        columns = [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]
        self._views = [self._drawn[:, one] for one in columns]
        # A graph takes contiguous memory, which the columns of a single row are.
        self._in_place = rows == 1
        self.parts = self._views if self._in_place else [view.copy() for view in self._views]

    def draw(self) -> None:
        """Fill `parts`, one array [B, n] a graph."""
        if self._drawn.size == 0:
            return
        self._batch.draw(self._drawn, by_position=self._by_position)
        if not self._in_place:
            for part, view in zip(self.parts, self._views, strict=True):
                part[:] = view


def window_of(graph: str, config: BundleConfig) -> int:
    """Tokens that a later call of `graph` feeds."""
    if graph == "draft" and config.num_drafts > 1:
        # Its cache holds the drafts interleaved: it reads again what the last round emitted.
        return config.num_speculative_tokens + 1
    return _WINDOWS[graph]


def uniforms_width(graph: GraphSpec) -> int:
    """Random numbers that a call of `graph` takes per row."""
    tensor = graph.input("uniforms")
    return int(tensor.shape[1]) if tensor is not None else 0


def cache_buffers(engine: Engine, graph: GraphSpec, rows: int) -> dict[str, Any]:
    """Empty caches of a graph."""
    return {c.name: engine.zeros(_shape(c.shape, rows), c.dtype) for c in graph.caches}


def output_buffers(
    engine: Engine, graph: GraphSpec, rows: int, *, length: int = 0, skipped: Sequence[str] = ()
) -> dict[str, Any]:
    """Buffers of a graph's outputs that are no caches; a later graph finds them as its inputs.

    Args:
        engine: where to make them.
        graph: whose outputs.
        rows: B.
        length: J, for a graph that takes any number of draft tokens.
        skipped: outputs that nobody wants.
    """
    buffers: dict[str, Any] = {}
    for tensor in graph.outputs:
        if tensor.alias_of is None and tensor.name not in skipped:
            shape = _shape(tensor.shape, rows, length)
            on_host = tensor.name in _READ_BY_HOST
            zeros = np.zeros(shape, tensor.dtype) if on_host else engine.zeros(shape, tensor.dtype)
            buffers[tensor.name] = zeros
    return buffers


def int64_zeros(*shape: int) -> NDArray[np.int64]:
    """Zeros."""
    return np.zeros(shape, dtype=np.int64)


def _shape(shape: tuple[int | str, ...], rows: int, length: int = 0) -> tuple[int, ...]:
    sizes = {"B": rows, "J": length, "J+1": length + 1}
    return tuple(sizes[size] if isinstance(size, str) else size for size in shape)
