"""The graphs of a bundle over slots: one call feeds, drafts, verifies and accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_compile.graph_contract import GRAPHS_OF_FUSION
from spec_compile.manifest import Manifest
from spec_compile.runtime.calls import cache_buffers, output_buffers, uniforms_width, window_of
from spec_compile.runtime.engine import Engine
from spec_compile.runtime.prompt_lookup import NOTHING
from spec_compile.runtime.slot_graph import Bound, SlotGraph
from spec_compile.runtime.slot_plan import Call
from spec_compile.runtime.slots import Slots

_ALL_READ = np.iinfo(np.int64).max


class SlotGraphs:
    """Runs calls over slots; a call is bound to a view of the rows that it is about.

    Args:
        engine: runs the graphs.
        manifest: the bundle's contract.
        slots: the rows; read, and `fed` is updated.
        speculative: False runs the `target` graph alone.

    Attributes:
        output_tokens: [N, 1 to k + 1] int64, what each row emitted in the last call.
        num_emitted: [N] int64.
        proposals: [N, k] draft tokens, written by the draft model, or by the caller if the bundle
            has none.
        num_speculative_tokens: k, or 0 for the target alone.
        takes_any_length: whether a call may verify less than k draft tokens.
        window: most tokens that a round feeds again.
        fed_as_usual: whether the last call fed no graph more than a round does.
    """

    output_tokens: NDArray[np.int64]
    num_emitted: NDArray[np.int64]
    fed_as_usual = True

    def __init__(
        self, engine: Engine, manifest: Manifest, slots: Slots, *, speculative: bool
    ) -> None:
        config, rows = manifest.config, len(slots)
        fused = [name for name in GRAPHS_OF_FUSION[config.fusion] if name != "target"]
        names = [name for name in fused if name in manifest.graphs] if speculative else ["target"]
        specs = [manifest.graphs[name] for name in names]
        self.num_speculative_tokens = config.num_speculative_tokens if speculative else 0
        self._engine, self._slots, self._max_length = engine, slots, config.max_length
        self._by_position = config.draws_by_position
        self._drawn = np.zeros((rows, sum(map(uniforms_width, specs))), dtype=np.float32)
        self._drawn_rows = list(self._drawn)
        self._last_spec = specs[-1]
        self.takes_any_length = self._last_spec.takes_any_length
        shared: dict[str, Any] = dict(slots.sampling)
        for spec in specs[:-1]:
            shared |= output_buffers(engine, spec, rows)
        if config.lookup_sizes is not None:
            shape = (rows, config.num_speculative_tokens)
            shared["draft_tokens"] = np.full(shape, NOTHING, dtype=np.int64)
        self.proposals: Any = shared.get("draft_tokens")
        self._graphs: list[SlotGraph] = []
        column = 0
        for name, spec in zip(names, specs, strict=True):
            drawn = self._drawn[:, column : column + uniforms_width(spec)]
            column += uniforms_width(spec)
            buffers = {**shared, **cache_buffers(engine, spec, rows)}
            window = window_of(name, config)
            self._graphs.append(SlotGraph(engine, name, spec, slots, buffers, window, drawn))
        self.window = max(graph.window for graph in self._graphs)
        self._has_draft = len(names) > 1
        # How much of each row the draft model has read, where that is less than usual.
        self._read = np.full(rows, _ALL_READ)
        self._some_unread = False
        self._variants: dict[int, dict[str, Any]] = {}
        self._use(self.num_speculative_tokens)

    def open(self) -> None:
        """Open every graph, so that the first call need not."""
        for graph in self._graphs:
            self._bound(graph, 0, 1, graph.window)

    def draw(self, slots: Sequence[int]) -> None:
        """Draw the random numbers of rows' next rounds, once a round however often it is run."""
        if self._drawn.size:
            for slot in slots:
                self._slots.draw(slot, self._drawn_rows[slot], by_position=self._by_position)

    def run(self, call: Call, length: int | None = None) -> None:
        """Feed, and compute `output_tokens` and `num_emitted` of the call's slots.

        Args:
            call: what to feed.
            length: draft tokens to verify; None: k.

        Raises:
            ArtifactError: a graph is damaged.
            BackendError: the engine fails.
        """
        length = self.num_speculative_tokens if length is None else length
        self._use(length)
        widths = self._widths(call)
        self._roll_back(call, max(widths))
        ends = self._ends(call)
        if self._has_draft:
            self._draft(call, ends, widths[0])
        self._copy_proposals(call)
        graph, width = self._graphs[-1], widths[-1]
        self._run_graph(graph, call, self._starts(graph, call, ends, width), ends, width)
        for slot, end in call.ends.items():
            self._slots.fed[slot] = end
        self.fed_as_usual = widths[0] == self._graphs[0].window

    def most_drafted(self, call: Call) -> int:
        """Draft tokens that a call may verify: none while the draft has to read up beside prompts,
        for then the target would be fed as many tokens as the draft.
        """
        unread = self._some_unread and bool(call.ends)
        if unread and any(self._read[slot] != _ALL_READ for slot in call.running):
            return 0
        return self.num_speculative_tokens

    def move(self, source: int, target: int) -> None:
        """Copy what the caches hold of a row into another one."""
        used = int(self._slots.committed[source])
        self._read[target] = self._read[source]
        for graph in self._graphs:
            for cache in graph.caches:
                cache[target, :, :used] = cache[source, :, :used]

    def wipe(self, slot: int) -> None:
        """Zero a row's caches: a NaN left there would spoil the row's next request."""
        for graph in self._graphs:
            for cache in graph.caches:
                cache[slot] = 0

    def _use(self, length: int) -> None:
        """Make the buffers of calls over `length` draft tokens the current ones."""
        if length not in self._variants:
            rows = len(self._slots)
            made = output_buffers(
                self._engine, self._last_spec, rows, length=length, skipped=("logits",)
            )
            whole = length == self.num_speculative_tokens
            drafts = self.proposals if whole else np.zeros((rows, length), dtype=np.int64)
            self._variants[length] = made if drafts is None else {**made, "draft_tokens": drafts}
        self._length = length
        self._buffers: Mapping[str, Any] = self._variants[length]
        self.output_tokens = self._buffers["output_tokens"]
        self.num_emitted = self._buffers["num_emitted"]

    def _widths(self, call: Call) -> list[int]:
        """T of each graph."""
        if call.ends:
            parts = [end - int(self._slots.fed[slot]) for slot, end in call.ends.items()]
            return [max(parts + [self.window] * bool(call.running))] * len(self._graphs)
        widths = [graph.window for graph in self._graphs]
        if self._some_unread:
            slots = list(call.running)
            unread = self._slots.committed[slots] - self._read[slots]
            widths[0] = max(widths[0], int(unread.max()))
        return widths

    def _roll_back(self, call: Call, width: int) -> None:
        """A call writes T entries behind each row's length, also into rows that stand still: a
        prompt so near the end that they would not fit is fed again from where they do.
        """
        if not call.is_full:
            fed = self._slots.fed[call.first : call.last]
            np.minimum(fed, self._max_length - width, out=fed)

    def _ends(self, call: Call) -> list[int]:
        """How much of each row's history the caches hold after the call."""
        rows, slots = slice(call.first, call.last), self._slots
        ends: list[int] = slots.committed[rows].tolist()
        if call.is_full:
            return ends
        standing = zip(slots.started[rows].tolist(), slots.fed[rows].tolist(), strict=True)
        for row, (started, fed) in enumerate(standing):
            if not started:
                ends[row] = call.ends.get(call.first + row, fed)
        return ends

    def _starts(self, graph: SlotGraph, call: Call, ends: Sequence[int], width: int) -> list[int]:
        """Where in each row's history a graph begins to read."""
        rows, slots = slice(call.first, call.last), self._slots
        # T entries are written behind the start, and must fit there.
        latest, window = self._max_length - width, graph.window
        starts = [max(min(end - window, latest), 0) for end in ends]
        if self._some_unread and graph is not self._graphs[-1]:
            starts = [
                max(min(one), 0) for one in zip(starts, self._read[rows].tolist(), strict=True)
            ]
        if call.is_full:
            return starts
        standing = zip(starts, slots.started[rows].tolist(), slots.fed[rows].tolist(), strict=True)
        return [start if started else fed for start, started, fed in standing]

    def _run_graph(
        self,
        graph: SlotGraph,
        call: Call,
        starts: Sequence[int],
        ends: Sequence[int],
        width: int,
    ) -> None:
        bound = self._bound(graph, call.first, call.last, width)
        graph.run(bound, starts, ends)

    def _bound(self, graph: SlotGraph, first: int, last: int, width: int) -> Bound:
        varying = self._buffers if graph is self._graphs[-1] else {}
        return graph.bound(first, last, width, self._length, varying)

    def _draft(self, call: Call, ends: Sequence[int], width: int) -> None:
        """Run the draft model; to propose nothing, only over prompts."""
        graph, rows = self._graphs[0], slice(call.first, call.last)
        if self._length > 0:
            starts = self._starts(graph, call, ends, width)
            self._run_graph(graph, call, starts, ends, width)
            if self._some_unread:
                self._read[rows] = _ALL_READ
                self._some_unread = bool((self._read != _ALL_READ).any())
            return
        started, read, last = self._slots.started[rows], self._read[rows], np.array(ends)
        # Rows that stand still are written to nevertheless, where that fits.
        still = np.minimum(last, self._max_length - width)
        np.minimum(read, np.minimum(still, last - graph.window), out=read, where=started)
        self._some_unread = self._some_unread or bool(started.any())
        if call.ends:
            starts = np.where(started, still, self._slots.fed[rows]).tolist()
            self._run_graph(graph, call, starts, np.where(started, still, last).tolist(), width)

    def _copy_proposals(self, call: Call) -> None:
        """The first of them, where a call verifies less than k."""
        if 0 < self._length < self.num_speculative_tokens:
            rows = slice(call.first, call.last)
            np.copyto(self._buffers["draft_tokens"][rows], self.proposals[rows, : self._length])
