"""One graph of a bundle over tokens and lengths of one's own choice."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from spec_compile.manifest import Manifest
from spec_compile.runtime.engine import Engine, Run
from spec_compile.runtime.sampling import Sampling

_FEED = ("tokens", "num_new", "lengths")
PLAIN = (1.0, 0, 1.0, 0.0)
"""Temperature 1 and no filter: the softmax of the logits."""


def sampling_of(options: tuple[float, int, float, float], rows: int = 1) -> Sampling:
    """Temperature, top-k, top-p and min-p as arrays [rows], of the types that a graph takes."""
    types = (np.float32, np.int64, np.float32, np.float32)
    arrays = [np.full(rows, value, dtype) for value, dtype in zip(options, types, strict=True)]
    return Sampling(*arrays)


class GraphRun:
    """A graph bound to buffers of its own; all rows hold the same tokens.

    What no one feeds (uniforms, for instance) is zero.

    Args:
        engine: runs the graph.
        manifest: the bundle's contract.
        name: of the graph.
        options: temperature, top-k, top-p and min-p.
        rows: B.

    Attributes:
        outputs: what the graph writes, by name, caches left out.
    """

    def __init__(
        self,
        engine: Engine,
        manifest: Manifest,
        name: str,
        options: tuple[float, int, float, float] = PLAIN,
        rows: int = 1,
    ) -> None:
        spec = manifest.graphs[name]
        self._engine, self._name, self._rows = engine, name, rows
        aliases = {tensor.alias_of for tensor in spec.outputs}
        self.outputs: dict[str, Any] = {
            tensor.name: np.zeros(self._shape(tensor.shape), tensor.dtype)
            for tensor in spec.outputs
            if tensor.alias_of is None
        }
        sampling = sampling_of(options, rows)._asdict()
        self._buffers: dict[str, Any] = dict(self.outputs)
        for tensor in spec.inputs:
            if tensor.name in sampling:
                self._buffers[tensor.name] = sampling[tensor.name]
            elif tensor.name in aliases:
                shape = self._shape(tensor.shape)
                self._buffers[tensor.name] = engine.zeros(shape, tensor.dtype)
            elif tensor.name not in _FEED:
                self._buffers[tensor.name] = np.zeros(self._shape(tensor.shape), tensor.dtype)
        self._bound: dict[int, tuple[dict[str, Any], Run]] = {}

    def run(self, tokens: Sequence[int], length: int) -> float:
        """Feed `tokens` behind `length` valid cache entries; the milliseconds that it took."""
        feed, run = self._bind(len(tokens))
        feed["tokens"][:] = tokens
        feed["num_new"][:] = len(tokens)
        feed["lengths"][:] = length
        started = time.perf_counter()
        run()
        return 1000.0 * (time.perf_counter() - started)

    def _bind(self, width: int) -> tuple[dict[str, Any], Run]:
        if width not in self._bound:
            feed = {
                "tokens": np.zeros((self._rows, width), np.int64),
                "num_new": np.zeros(self._rows, np.int64),
                "lengths": np.zeros(self._rows, np.int64),
            }
            self._bound[width] = feed, self._engine.bind(self._name, self._buffers | feed)
        return self._bound[width]

    def _shape(self, shape: tuple[int | str, ...]) -> tuple[int, ...]:
        return tuple(self._rows if isinstance(size, str) else size for size in shape)
