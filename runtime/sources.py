"""Source texts of a batch: encoded once, read by every later call of the decoder's graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_compile.graph_contract import ENCODERS, SOURCE_LENGTHS, SOURCE_TOKENS
from spec_compile.manifest import Manifest
from spec_compile.runtime.calls import output_buffers
from spec_compile.runtime.engine import Engine, Run


class Sources:
    """The encoders of one generation, bound to its buffers.

    Args:
        engine: runs them.
        manifest: the bundle's contract.
        texts: token ids of each row's source.
        models: whose encoders to run, `target` and `draft`; those that the bundle lacks are not.

    Attributes:
        buffers: what the decoders' graphs read, by name; filled by `read`.
    """

    def __init__(
        self,
        engine: Engine,
        manifest: Manifest,
        texts: Sequence[Sequence[int]],
        models: Sequence[str],
    ) -> None:
        tokens, lengths = _padded(texts)
        self.buffers: dict[str, Any] = {SOURCE_LENGTHS: lengths}
        self._runs: list[Run] = []
        for name in (ENCODERS[model] for model in models):
            if name not in manifest.graphs:
                continue
            outputs = output_buffers(engine, manifest.graphs[name], *tokens.shape)
            self.buffers |= outputs
            fed = {SOURCE_TOKENS: tokens, SOURCE_LENGTHS: lengths}
            self._runs.append(engine.bind(name, {**fed, **outputs}))

    def read(self) -> None:
        """Run the encoders; only the first time."""
        for run in self._runs:
            run()
        self._runs.clear()


def _padded(texts: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sources side by side, padded with 0 to the longest, and their lengths."""
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    tokens = np.zeros((len(texts), int(lengths.max())), dtype=np.int64)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    return tokens, lengths
