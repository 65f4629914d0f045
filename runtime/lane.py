"""Slots and the graphs that serve them: one step feeds prompts and does everybody's round."""

from __future__ import annotations

import time
from collections.abc import Sequence

from spec_compile.errors import BackendError, SpecCompileError
from spec_compile.manifest import Manifest
from spec_compile.runtime.decoder import check_emitted, check_tokens
from spec_compile.runtime.engine import Engine
from spec_compile.runtime.slot_drafting import LaneKind, SlotDrafting
from spec_compile.runtime.slot_graphs import SlotGraphs
from spec_compile.runtime.slot_plan import Call, Prompt, plan_calls
from spec_compile.runtime.slots import Slots
from spec_compile.runtime.ticket import Ticket


class Lane:
    """Requests side by side in the rows of one set of graphs; used by one thread.

    Args:
        engine: runs the graphs.
        manifest: the bundle's contract.
        num_slots: rows.
        prefill_chunk: most tokens of prompts that a step feeds.
        kind: of the requests.

    Raises:
        ArtifactError: a graph is damaged.
        BackendError: the engine cannot load a graph, or the caches do not fit into memory.
    """

    def __init__(
        self,
        engine: Engine,
        manifest: Manifest,
        num_slots: int,
        prefill_chunk: int,
        kind: LaneKind = LaneKind.SPECULATIVE,
    ) -> None:
        config, speculative = manifest.config, kind is not LaneKind.TARGET_ONLY
        try:
            self._slots = Slots(num_slots, config.max_length)
            self._graphs = SlotGraphs(engine, manifest, self._slots, speculative=speculative)
        except MemoryError as error:
            raise BackendError(
                f"not enough memory for {num_slots} slots of {config.max_length} tokens; give "
                "fewer slots, or export with a smaller --max-length"
            ) from error
        self._graphs.open()
        self._drafting = SlotDrafting(manifest, self._slots, kind, self._graphs.proposals)
        self._vocab_size = manifest.vocab_size
        self._num_drafted = self._graphs.num_speculative_tokens * config.num_drafts
        # A smaller part could be rolled back faster than it is fed; see SlotGraphs.
        self._prefill_chunk = max(prefill_chunk, self._graphs.window)
        self._tickets: dict[int, Ticket] = {}  # by slot, oldest first

    @property
    def tickets(self) -> Sequence[Ticket]:
        """The requests that sit in slots."""
        return tuple(self._tickets.values())

    def enter(self, ticket: Ticket) -> None:
        """Seat a request in the lowest free slot; there must be one."""
        slot = next(s for s in range(len(self._slots)) if not self._slots.is_occupied(s))
        self._drafting.enter(slot, ticket.options)
        self._slots.enter(slot, ticket.prompt, ticket.options, ticket.seed)
        self._tickets[slot] = ticket

    def clear_ended(self) -> list[Ticket]:
        """Let those leave that ended without us, and return them."""
        ended = [slot for slot, ticket in self._tickets.items() if ticket.row.finished]
        return [self._leave(slot) for slot in ended]

    def step(self) -> list[Ticket]:
        """Advance every running request by a round, and prompts by at most `prefill_chunk` tokens.

        Returns:
            Requests that have new tokens or an error; those that have ended have left.
        """
        self._close_gap()
        started = self._slots.started.tolist()
        running = [slot for slot in self._tickets if started[slot]]
        prompts = [
            Prompt(slot, int(self._slots.fed[slot]), len(ticket.prompt))
            for slot, ticket in self._tickets.items()
            if not started[slot]
        ]
        calls = plan_calls(
            running,
            prompts,
            most_tokens=self._prefill_chunk,
            window=self._graphs.window,
            num_drafted=self._num_drafted,
        )
        return [ticket for call in calls for ticket in self._do(call)]

    def _do(self, call: Call) -> list[Ticket]:
        started, graphs, drafting = time.perf_counter(), self._graphs, self._drafting
        completed = [s for s, end in call.ends.items() if end == len(self._tickets[s].prompt)]
        emitting = [*call.running, *completed]
        graphs.draw(emitting)
        most = graphs.most_drafted(call)
        length = drafting.choose(call, emitting, most, any_length=graphs.takes_any_length)
        failed = self._run(call, length)
        blocks = graphs.output_tokens[call.first : call.last].tolist()
        counts = graphs.num_emitted[call.first : call.last].tolist()
        now = time.monotonic()
        changed = [self._fail(slot, error) for slot, error in failed.items()]
        emitted = {slot: counts[slot - call.first] for slot in emitting if slot not in failed}
        proposed = [drafting.proposed(slot, length) for slot in emitted]
        if not failed:
            milliseconds = 1000.0 * (time.perf_counter() - started)
            usual = graphs.fed_as_usual
            drafting.learn(length, proposed, [*emitted.values()], milliseconds, usual=usual)
        for slot in completed:
            self._slots.start(slot)
        for (slot, count), number in zip(emitted.items(), proposed, strict=True):
            changed.append(self._take(slot, blocks[slot - call.first], count, number, now))
        return changed

    def _run(self, call: Call, length: int) -> dict[int, SpecCompileError]:
        """Run a call; when it fails, find out whose fault it is by running each row alone."""
        try:
            self._graphs.run(call, length)
        except SpecCompileError as error:
            if len(call.slots) == 1:
                return {call.slots[0]: error}
            failed: dict[int, SpecCompileError] = {}
            for slot in call.slots:
                failed |= self._run(call.alone(slot), length)
            return failed
        return {}

    def _take(
        self, slot: int, block: list[int], count: int, num_proposed: int, now: float
    ) -> Ticket:
        ticket = self._tickets[slot]
        try:
            check_emitted(0, count, len(block))
            check_tokens(block[:count], self._vocab_size)
            kept = ticket.row.accept(block[:count], ticket.lap(now), num_proposed)
        except SpecCompileError as error:
            return self._fail(slot, error)
        self._slots.commit(slot, kept)
        return self._leave(slot) if ticket.row.finished else ticket

    def _fail(self, slot: int, error: SpecCompileError) -> Ticket:
        self._graphs.wipe(slot)
        ticket = self._leave(slot)
        ticket.fail(error)
        return ticket

    def _leave(self, slot: int) -> Ticket:
        self._slots.leave(slot)
        self._drafting.leave(slot)
        return self._tickets.pop(slot)

    def _close_gap(self) -> None:
        """Seat the highest row in the lowest free slot: calls pay for the slots in between."""
        while self._tickets and (highest := max(self._tickets)) >= len(self._tickets):
            free = next(slot for slot in range(highest) if slot not in self._tickets)
            self._graphs.move(highest, free)
            self._slots.move(highest, free)
            self._drafting.move(highest, free)
            moved = {highest: free}
            self._tickets = {moved.get(slot, slot): t for slot, t in self._tickets.items()}
