"""What proposes the draft tokens of a round: a draft model, or the text itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from spec_compile.manifest import Manifest
from spec_compile.runtime.batch import Batch
from spec_compile.runtime.calls import (
    PROMPT,
    GraphCall,
    cache_buffers,
    output_buffers,
    window_of,
)
from spec_compile.runtime.engine import Engine


class Drafter(Protocol):
    """Proposes tokens for all rows of a batch; each round asks in the order of these methods."""

    def available(self) -> NDArray[np.int64]:
        """Most tokens that each row [B] can propose now; none for one that has ended."""

    def buffers(self, length: int) -> Mapping[str, Any]:
        """What `verify` reads in a round of `length` draft tokens; the same ones each time."""

    def propose(self, length: int) -> None:
        """Fill `buffers(length)`."""


class ModelDrafter:
    """A draft model: the graph `draft`; a `Drafter`.

    Args:
        engine: runs it.
        manifest: the bundle's contract.
        batch: the rows.
        uniforms: [B, n] random numbers of the draft.
    """

    def __init__(
        self, engine: Engine, manifest: Manifest, batch: Batch, uniforms: NDArray[np.float32]
    ) -> None:
        graph, rows = manifest.graphs["draft"], batch.num_rows
        self._batch, self._most = batch, manifest.config.num_speculative_tokens
        self._outputs = output_buffers(engine, graph, rows)
        tensors = {**batch.sampling, **cache_buffers(engine, graph, rows), **self._outputs}
        self._call = GraphCall(engine, "draft", batch, {**tensors, "uniforms": uniforms})
        self._call.bind(PROMPT)
        self._width, self._window = PROMPT, window_of("draft", manifest.config)

    def available(self) -> NDArray[np.int64]:
        """k for each row [B]."""
        return self._batch.active * self._most

    def buffers(self, length: int) -> Mapping[str, Any]:
        """`draft_tokens` and, if the rule uses them, `draft_probs`: the outputs of the graph."""
        return self._outputs

    def propose(self, length: int) -> None:
        """Run the draft loop, which proposes k tokens."""
        self._call.run(self._width)
        self._width = self._window
