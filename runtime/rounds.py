"""One round of speculative decoding over a batch: draft, verify, accept.

Prefill and rounds are the same calls: first every graph is fed the prompts, later the last tokens
that it may not have in its cache. The caches are rolled back by naming a smaller length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_compile.graph_contract import GRAPHS_OF_FUSION
from spec_compile.manifest import BundleConfig, GraphSpec, Manifest
from spec_compile.runtime.batch import Batch, WindowFeed, prompt_feed
from spec_compile.runtime.engine import Engine, Run

# Tokens that a later call feeds again. A draft model proposes k tokens but reads only k - 1 of
# them, so a fully accepted block leaves a hole of one in its cache; the target reads them all.
_WINDOWS = {"draft": 2, "verify": 1, "step": 2, "target": 1}


def window_of(graph: str, config: BundleConfig) -> int:
    """Tokens that a later call of `graph` feeds."""
    if graph == "draft" and config.num_drafts > 1:
        # Its cache holds the drafts interleaved: it reads again what the last round emitted.
        return config.num_speculative_tokens + 1
    return _WINDOWS[graph]


_READ_BY_HOST = ("output_tokens", "num_emitted", "logits")


class Rounds:
    """The graphs of one generation, bound to its buffers.

    Args:
        engine: runs the graphs.
        manifest: the bundle's contract.
        batch: the rows; `run` reads them, the caller commits what it keeps.
        speculative: False runs the `target` graph alone.
        with_logits: also compute `logits` [B, 1, V] (of the `target` graph only).

    Attributes:
        output_tokens: [B, k + 1] int64, what the last round emitted, -1 in the unused tail.
        num_emitted: [B] int64, 1..k + 1, or 0 where the logits held NaN or infinity.
        num_speculative_tokens: k, or 0 for the target alone.
        vocab_size: every token is below it.
    """

    output_tokens: NDArray[np.int64]
    num_emitted: NDArray[np.int64]

    def __init__(
        self,
        engine: Engine,
        manifest: Manifest,
        batch: Batch,
        *,
        speculative: bool = True,
        with_logits: bool = False,
    ) -> None:
        fused = [name for name in GRAPHS_OF_FUSION[manifest.config.fusion] if name != "target"]
        names = fused if speculative else ["target"]
        self.num_speculative_tokens = manifest.config.num_speculative_tokens if speculative else 0
        self.vocab_size = manifest.vocab_size
        self._batch = batch
        self.buffers: dict[str, Any] = dict(batch.sampling)
        self._uniforms = _Uniforms([manifest.graphs[name] for name in names], batch)
        self._calls = []
        for name, uniforms in zip(names, self._uniforms.parts, strict=True):
            graph = manifest.graphs[name]
            skipped = () if with_logits else ("logits",)
            self.buffers.update(output_buffers(engine, graph, batch.num_rows, skipped=skipped))
            buffers = self.buffers | {"uniforms": uniforms}
            window = window_of(name, manifest.config)
            self._calls.append(_Call(engine, name, graph, batch, buffers, window))
        self.output_tokens = self.buffers["output_tokens"]
        self.num_emitted = self.buffers["num_emitted"]

    def run(self) -> None:
        """Draft k tokens, run the target over them, accept: `output_tokens` and `num_emitted`."""
        self._uniforms.draw()
        for call in self._calls:
            call.run()


class _Call:
    """One graph over one batch: the prompts in its first run, then the last tokens."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        graph: GraphSpec,
        batch: Batch,
        buffers: dict[str, Any],
        window: int,
    ) -> None:
        self._engine, self._name, self._batch, self._window = engine, name, batch, window
        self._buffers = buffers | cache_buffers(engine, graph, batch.num_rows)
        self._feed: WindowFeed | None = None
        self._run: Run = self._bind(prompt_feed(batch))

    def run(self) -> None:
        if self._feed is not None:
            self._feed.update()
            self._run()
            return
        self._run()
        self._feed = WindowFeed(self._batch, self._window)
        self._run = self._bind(self._feed.buffers)

    def _bind(self, feed: dict[str, NDArray[np.int64]]) -> Run:
        return self._engine.bind(self._name, self._buffers | feed)


class _Uniforms:
    """The random numbers of a round: one draw per row, shared out to the graphs in order."""

    def __init__(self, graphs: list[GraphSpec], batch: Batch) -> None:
        rows, widths = batch.num_rows, [uniforms_width(graph) for graph in graphs]
        self._batch = batch
        self._drawn = np.zeros((rows, sum(widths)), dtype=np.float32)
        self.parts = [np.zeros((rows, width), dtype=np.float32) for width in widths]
        ends = np.cumsum(widths).tolist()
        self._slices = [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]

    def draw(self) -> None:
        if self._drawn.size == 0:
            return
        self._batch.draw(self._drawn)
        for part, columns in zip(self.parts, self._slices, strict=True):
            part[:] = self._drawn[:, columns]


def uniforms_width(graph: GraphSpec) -> int:
    """Random numbers that a call of `graph` takes per row."""
    tensor = graph.input("uniforms")
    return int(tensor.shape[1]) if tensor is not None else 0


def cache_buffers(engine: Engine, graph: GraphSpec, rows: int) -> dict[str, Any]:
    """Empty caches of a graph."""
    return {c.name: engine.zeros(_shape(c.shape, rows), c.dtype) for c in graph.caches}


def output_buffers(
    engine: Engine, graph: GraphSpec, rows: int, *, skipped: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Buffers of a graph's outputs that are no caches; a later graph finds them as its inputs."""
    buffers: dict[str, Any] = {}
    for tensor in graph.outputs:
        if tensor.alias_of is None and tensor.name not in skipped:
            shape = _shape(tensor.shape, rows)
            on_host = tensor.name in _READ_BY_HOST
            zeros = np.zeros(shape, tensor.dtype) if on_host else engine.zeros(shape, tensor.dtype)
            buffers[tensor.name] = zeros
    return buffers


def _shape(shape: tuple[int | str, ...], rows: int) -> tuple[int, ...]:
    return tuple(rows if size == "B" else int(size) for size in shape)
