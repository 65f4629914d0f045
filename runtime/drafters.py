"""What proposes the draft tokens of a round: a draft model, or the text itself."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from spec_compile.manifest import Manifest
from spec_compile.runtime.batch import Batch
from spec_compile.runtime.calls import (
    PROMPT,
    GraphCall,
    cache_buffers,
    int64_zeros,
    output_buffers,
    window_of,
)
from spec_compile.runtime.engine import Engine


class Drafter(Protocol):
    """Proposes tokens for all rows of a batch; each round asks in the order of these methods."""

    def available(self) -> list[int]:
        """Most tokens that each row can propose now; none for one that has ended."""

    def buffers(self, length: int) -> Mapping[str, Any]:
        """What `verify` reads in a round of `length` draft tokens; the same ones each time."""

    def propose(self, length: int) -> bool:
        """Fill `buffers(length)`.

        Returns:
            Whether that took as long as it usually does, so that its time may be learnt from.
        """


class ModelDrafter:
    """A draft model: the graph `draft`; a `Drafter`.

    Args:
        engine: runs it.
        manifest: the bundle's contract.
        batch: the rows.
        uniforms: [B, n] random numbers of the draft.
        read: what it reads of the source texts, by name; empty for a draft without an encoder.
    """

    def __init__(
        self,
        engine: Engine,
        manifest: Manifest,
        batch: Batch,
        uniforms: NDArray[np.float32],
        read: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        graph, rows = manifest.graphs["draft"], batch.num_rows
        self._batch, self._most = batch, manifest.config.num_speculative_tokens
        self._outputs = output_buffers(engine, graph, rows)
        tensors = {**batch.sampling, **cache_buffers(engine, graph, rows), **self._outputs}
        self._call = GraphCall(engine, "draft", batch, {**tensors, **read, "uniforms": uniforms})
        self._call.bind(PROMPT)
        self._window = window_of("draft", manifest.config)
        self._reads_all = not graph.caches
        self._read = int64_zeros(rows)  # tokens of each row that the last call had been fed
        self._started = self._skipped = False
        self._shorter: dict[int, NDArray[np.int64]] = {}

    def available(self) -> list[int]:
        """k for each row that has not ended."""
        return [self._most if active else 0 for active in self._batch.active.tolist()]

    def buffers(self, length: int) -> Mapping[str, Any]:
        """`draft_tokens` and, if the rule uses them, `draft_probs`: the outputs of the graph.

        Fewer than k draft tokens are the first of them.
        """
        if length == self._most:
            return self._outputs
        if length not in self._shorter:
            self._shorter[length] = int64_zeros(self._batch.num_rows, length)
        return {**self._outputs, "draft_tokens": self._shorter[length]}

    def propose(self, length: int) -> bool:
        """Run the draft loop, which proposes k tokens; nothing is run to propose none.

        After rounds in which it was not run, it reads what they have emitted first.
        """
        if length == 0:
            self._skipped = True
            return True
        width = self._width()
        self._call.run(width)
        self._started, self._skipped = True, False
        np.copyto(self._read, self._batch.committed)
        if length < self._most:
            np.copyto(self._shorter[length], self._outputs["draft_tokens"][:, :length])
        return self._reads_all or width == self._window

    def _width(self) -> int:
        if self._reads_all and self._started:
            return int((self._batch.committed * self._batch.active).max())
        if self._skipped:
            unread = (self._batch.committed - self._read) * self._batch.active
            return max(self._window, int(unread.max()))
        return self._window if self._started else PROMPT
