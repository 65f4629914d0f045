"""Continuous batching: one worker runs the engine, any thread submits.

Requests wait in a bounded queue, in order of arrival. Between two steps of the engine the worker
lets those leave that have ended, were cancelled or are late, and seats those that wait in the
slots that are free. No lock is held while the engine runs.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from spec_compile.errors import ClosedError, ConfigError, QueueFullError, SpecCompileError
from spec_compile.manifest import Manifest
from spec_compile.runtime.counters import Counters, CountersSnapshot
from spec_compile.runtime.engine import Engine
from spec_compile.runtime.lane import Lane
from spec_compile.runtime.requests import GenerationOptions, check_count
from spec_compile.runtime.row import CAPACITY, DEADLINE, LENGTH
from spec_compile.runtime.slot_drafting import LaneKind, kind_of
from spec_compile.runtime.ticket import Listener, SharedRow, Ticket
from spec_compile.runtime.tokenizer import BundleTokenizer

PREFILL_CHUNK, MAX_QUEUE = 64, 256


class Scheduler:
    """Serves checked requests of one bundle side by side; see `SharedDecoder` for its use.

    Args:
        engine: runs the graphs.
        manifest: the bundle's contract.
        tokenizer: decodes the outputs; None gives no text.
        num_slots: requests that are served at a time; None takes the bundle's `batch_size`.
        max_queue: requests that may wait beside them.
        prefill_chunk: most tokens of prompts that a step feeds: how long a prompt in another slot
            may delay a round.

    Raises:
        ArtifactError: a graph is damaged.
        BackendError: the engine cannot load a graph, or the caches do not fit into memory.
        ConfigError: a number that is not positive.
    """

    def __init__(
        self,
        engine: Engine,
        manifest: Manifest,
        tokenizer: BundleTokenizer | None,
        *,
        num_slots: int | None = None,
        max_queue: int = MAX_QUEUE,
        prefill_chunk: int = PREFILL_CHUNK,
    ) -> None:
        if manifest.reads_source:
            raise ConfigError(
                "continuous batching does not serve encoder-decoder models, whose sources are read "
                "for a whole batch at once; use spec_compile.load"
            )
        self.num_slots = manifest.config.batch_size if num_slots is None else num_slots
        for name, value in (
            ("num_slots", self.num_slots),
            ("max_queue", max_queue),
            ("prefill_chunk", prefill_chunk),
        ):
            check_count(name, value)
        self._engine, self._manifest, self._tokenizer = engine, manifest, tokenizer
        self._max_queue, self._prefill_chunk = max_queue, prefill_chunk
        self._lanes: dict[LaneKind, Lane] = {}
        self._lane(LaneKind.SPECULATIVE)  # so that the first request need not wait for it
        self._changed = threading.Condition()
        self._queue: deque[Ticket] = deque()
        self._closing = self._cancelling = False
        self.counters = Counters(manifest.config.num_speculative_tokens)
        self._worker = threading.Thread(target=self._work, name="spec-compile", daemon=True)
        self._worker.start()

    def submit(
        self,
        prompt: Sequence[int],
        options: GenerationOptions,
        seed: int,
        *,
        timeout: float | None = None,
        listener: Listener | None = None,
    ) -> Ticket:
        """Queue a checked request.

        Args:
            prompt: token ids that `check_prompt` let pass.
            options: what `check_options` let pass.
            seed: of its random numbers.
            timeout: seconds after which it ends with the reason `deadline`; None never.
            listener: see `Ticket`.

        Raises:
            QueueFullError: `max_queue` requests wait already.
            ClosedError: the scheduler is closed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        row = self._row(len(prompt), options)
        ticket = Ticket(row, prompt, options, seed, deadline=deadline, listener=listener)
        with self._changed:
            if self._closing:
                raise ClosedError("the decoder is closed; load the bundle again")
            if sum(not other.row.finished for other in self._queue) >= self._max_queue:
                raise QueueFullError(f"{self._max_queue} requests wait already; try again later")
            self._queue.append(ticket)
            self._changed.notify()
        return ticket

    def close(self, *, drain: bool = False, timeout: float | None = None) -> bool:
        """Take no more requests and end the worker; safe to call again.

        Args:
            drain: finish what was submitted, instead of ending it with `cancelled`.
            timeout: seconds to wait for the worker's end; None until it comes.

        Returns:
            Whether the worker has ended.
        """
        with self._changed:
            self._closing = True
            self._cancelling = self._cancelling or not drain
            self._changed.notify()
        if threading.current_thread() is not self._worker:
            self._worker.join(timeout)
        return not self._worker.is_alive()

    @property
    def is_running(self) -> bool:
        """Whether requests are taken and served."""
        return self._worker.is_alive() and not self._closing

    def snapshot(self) -> CountersSnapshot:
        """What has been counted so far."""
        with self._changed:
            waiting = len(self._queue)
        return self.counters.snapshot(waiting=waiting)

    def _row(self, prompt_length: int, options: GenerationOptions) -> SharedRow:
        room = self._manifest.config.max_length - prompt_length
        k = self._manifest.config.num_speculative_tokens
        return SharedRow(
            budget=min(options.max_new_tokens, room),
            budget_reason=LENGTH if options.max_new_tokens <= room else CAPACITY,
            eos_token_ids=() if options.ignore_eos else self._manifest.eos_token_ids,
            stops=options.stops,
            tokenizer=self._tokenizer,
            num_speculative_tokens=k if options.speculative else 0,
        )

    def _work(self) -> None:
        """The worker's loop; whatever ends it, nobody is left waiting."""
        try:
            while self._wait_for_work():
                changed = self._let_leave()
                changed += self._seat()
                for lane in self._lanes.values():
                    changed += lane.step()
                self._publish(changed)
        finally:
            self._abandon()

    def _wait_for_work(self) -> bool:
        """Sleep until there is something to do; False when the worker has to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._seated() or self._closing)
            return bool(self._queue or self._seated())

    def _seated(self) -> list[Ticket]:
        return [ticket for lane in self._lanes.values() for ticket in lane.tickets]

    def _let_leave(self) -> list[Ticket]:
        now = time.monotonic()
        with self._changed:
            waiting = list(self._queue)
        for ticket in [*waiting, *self._seated()]:
            if self._cancelling:
                ticket.row.cancel()
            elif ticket.deadline is not None and ticket.deadline <= now:
                ticket.row.end(DEADLINE)
        ended = [ticket for ticket in waiting if ticket.row.finished]
        if ended:
            with self._changed:
                self._queue = deque(ticket for ticket in self._queue if ticket not in ended)
        for lane in self._lanes.values():
            ended += lane.clear_ended()
        return ended

    def _seat(self) -> list[Ticket]:
        """Seat who waits longest, as many as slots are free; returns those that failed."""
        failed = []
        free = self.num_slots - len(self._seated())
        with self._changed:
            entering = [self._queue.popleft() for _ in range(min(free, len(self._queue)))]
        for ticket in entering:
            try:
                self._lane(kind_of(ticket.options)).enter(ticket)
            except SpecCompileError as error:
                ticket.fail(error)
                failed.append(ticket)
        return failed

    def _lane(self, kind: LaneKind) -> Lane:
        if kind not in self._lanes:
            self._lanes[kind] = Lane(
                self._engine, self._manifest, self.num_slots, self._prefill_chunk, kind
            )
        return self._lanes[kind]

    def _publish(self, changed: Sequence[Ticket]) -> None:
        self.counters.record(changed, running=len(self._seated()))
        for ticket in changed:
            ticket.publish()

    def _abandon(self) -> None:
        with self._changed:
            self._closing = True
            left = [*self._queue, *self._seated()]
            self._queue.clear()
        for ticket in left:
            ticket.fail(ClosedError("the decoder has stopped; load the bundle again"))
        self._publish(left)
