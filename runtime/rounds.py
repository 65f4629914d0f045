"""One round of speculative decoding over a batch: draft, verify, accept.

Prefill and rounds are the same calls: first every graph is fed the prompts, later the last tokens
that it may not have in its cache. The caches are rolled back by naming a smaller length.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from spec_compile.manifest import Manifest
from spec_compile.runtime.adaptive import Planner
from spec_compile.runtime.batch import Batch
from spec_compile.runtime.calls import (
    PROMPT,
    GraphCall,
    RoundUniforms,
    cache_buffers,
    output_buffers,
    window_of,
)
from spec_compile.runtime.drafters import Drafter, ModelDrafter
from spec_compile.runtime.engine import Engine
from spec_compile.runtime.prompt_lookup import PromptLookup


class Rounds:
    """The graphs of one generation, bound to its buffers.

    Args:
        engine: runs the graphs.
        manifest: the bundle's contract.
        batch: the rows; `run` reads them, the caller commits what it keeps.
        speculative: False runs the `target` graph alone.
        with_logits: also compute `logits` [B, 1, V] (of the `target` graph only).
        lookup_sizes: shortest and longest n-gram of prompt lookup; None takes the bundle's.
        planner: chooses the number of draft tokens of each round, where `verify` takes any; None
            always drafts as many as there are.
        clock: seconds, what rounds are timed by for the planner.

    Attributes:
        num_speculative_tokens: k, or 0 for the target alone.
        vocab_size: every token is below it.
    """

    def __init__(
        self,
        engine: Engine,
        manifest: Manifest,
        batch: Batch,
        *,
        speculative: bool = True,
        with_logits: bool = False,
        lookup_sizes: tuple[int, int] | None = None,
        planner: Planner | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.num_speculative_tokens = manifest.config.num_speculative_tokens if speculative else 0
        self.vocab_size = manifest.vocab_size
        self._round: _Round
        if not speculative:
            self._round = _OneCall(engine, manifest, batch, "target", with_logits)
        elif manifest.config.fusion == "step":
            self._round = _OneCall(engine, manifest, batch, "step")
        else:
            self._round = _DraftAndVerify(engine, manifest, batch, lookup_sizes, planner, clock)

    @property
    def output_tokens(self) -> NDArray[np.int64]:
        """What the last round emitted, [B, 1 to k + 1], -1 in the unused tail."""
        return self._round.output_tokens

    @property
    def num_emitted(self) -> NDArray[np.int64]:
        """[B], 1..k + 1, or 0 where the logits held NaN or infinity."""
        return self._round.num_emitted

    @property
    def num_proposed(self) -> Sequence[int]:
        """Draft tokens that the last round proposed for each row."""
        return self._round.num_proposed

    @property
    def buffers(self) -> Mapping[str, Any]:
        """What the last round's graphs wrote, by name, caches left out."""
        return self._round.buffers

    def run(self) -> None:
        """Draft, run the target over the draft tokens, accept."""
        self._round.run()


class _Round(Protocol):
    output_tokens: NDArray[np.int64]
    num_emitted: NDArray[np.int64]
    num_proposed: Sequence[int]
    buffers: Mapping[str, Any]

    def run(self) -> None: ...


class _OneCall:
    """A round that is one call: `step`, or `target`."""

    def __init__(
        self,
        engine: Engine,
        manifest: Manifest,
        batch: Batch,
        name: str,
        with_logits: bool = False,
    ) -> None:
        graph, rows = manifest.graphs[name], batch.num_rows
        self._uniforms = RoundUniforms([graph], batch, manifest.config)
        self.buffers: Mapping[str, Any] = output_buffers(
            engine, graph, rows, skipped=() if with_logits else ("logits",)
        )
        self.output_tokens = self.buffers["output_tokens"]
        self.num_emitted = self.buffers["num_emitted"]
        drafted = manifest.config.num_speculative_tokens if name == "step" else 0
        self.num_proposed: Sequence[int] = [drafted] * rows
        tensors = {**batch.sampling, "uniforms": self._uniforms.parts[0], **self.buffers}
        tensors |= cache_buffers(engine, graph, rows)
        self._call = GraphCall(engine, name, batch, tensors)
        self._call.bind(PROMPT)
        self._width, self._window = PROMPT, window_of(name, manifest.config)

    def run(self) -> None:
        self._uniforms.draw()
        self._call.run(self._width)
        self._width = self._window


class _DraftAndVerify:
    """A round of the fusion `verify`: a drafter, then the target over what it proposed."""

    def __init__(
        self,
        engine: Engine,
        manifest: Manifest,
        batch: Batch,
        lookup_sizes: tuple[int, int] | None,
        planner: Planner | None,
        clock: Callable[[], float],
    ) -> None:
        graph, rows, config = manifest.graphs["verify"], batch.num_rows, manifest.config
        fed = [manifest.graphs[name] for name in ("draft", "verify") if name in manifest.graphs]
        self._uniforms = RoundUniforms(fed, batch, config)
        self._drafter: Drafter
        if config.lookup_sizes is None:
            self._drafter = ModelDrafter(engine, manifest, batch, self._uniforms.parts[0])
        else:
            sizes = lookup_sizes or config.lookup_sizes
            self._drafter = PromptLookup(batch, config.num_speculative_tokens, sizes)
        self._engine, self._graph, self._most = engine, graph, config.num_speculative_tokens
        self._batch, self._planner, self._clock = batch, planner, clock
        self._buffers: dict[int, dict[str, Any]] = {}  # by number of draft tokens
        self._num_rows = rows
        self.num_proposed: Sequence[int] = [0] * rows
        tensors = {**batch.sampling, "uniforms": self._uniforms.parts[-1]}
        tensors |= cache_buffers(engine, graph, rows)
        self._call = GraphCall(engine, "verify", batch, tensors)
        self._use(self._most)
        self._call.bind(PROMPT, self._most, self.buffers)
        self._width = PROMPT

    def run(self) -> None:
        started = self._clock()
        self._uniforms.draw()
        available = self._drafter.available()
        length = self._length(available)
        self._use(length)
        self.num_proposed = [min(most, length) for most in available]
        usual = self._drafter.propose(length) and self._width != PROMPT
        self._call.run(self._width, length, self.buffers)
        self._width = 1
        if self._planner is not None:
            self._planner.observe(
                length,
                self._running(self.num_proposed),
                self._running(self.num_emitted.tolist()),
                1000.0 * (self._clock() - started),
                usual=usual,
            )

    def _length(self, available: Sequence[int]) -> int:
        """Draft tokens of this round: as many as there are, if the graph takes any number."""
        if not self._graph.takes_any_length:
            return self._most
        if self._planner is not None:
            return self._planner.choose(self._running(available))
        return max(available)

    def _running(self, values: Sequence[int]) -> Sequence[int]:
        active = self._batch.active.tolist()
        return [value for value, runs in zip(values, active, strict=True) if runs]

    def _use(self, length: int) -> None:
        """Make the buffers of rounds of `length` draft tokens the current ones."""
        if length not in self._buffers:
            outputs = output_buffers(self._engine, self._graph, self._num_rows, length=length)
            self._buffers[length] = {**outputs, **self._drafter.buffers(length)}
        self.buffers: Mapping[str, Any] = self._buffers[length]
        self.output_tokens = self.buffers["output_tokens"]
        self.num_emitted = self.buffers["num_emitted"]
