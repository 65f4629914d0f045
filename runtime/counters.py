"""What a scheduler has done since it started, for whoever watches it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spec_compile.runtime.row import FINISH_REASONS
from spec_compile.runtime.ticket import Ticket

ERROR = "error"


@dataclass(frozen=True)
class CountersSnapshot:
    """Counts at one moment; those of tokens and rounds only grow.

    Args:
        running: requests that sit in slots.
        waiting: requests in the queue.
        num_drafts: rounds that proposed draft tokens, a row's each.
        num_draft_tokens: draft tokens proposed.
        num_accepted_tokens: draft tokens accepted and kept.
        accepted_per_position: accepted draft tokens by their place in the draft, k numbers.
        num_emitted_tokens: tokens kept.
        num_prompt_tokens: tokens of the prompts whose first round is over.
        finished: reason -> requests that ended for it; `error` among them.
    """

    running: int
    waiting: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    accepted_per_position: tuple[int, ...]
    num_emitted_tokens: int
    num_prompt_tokens: int
    finished: Mapping[str, int]


class Counters:
    """Counts of one scheduler; the worker writes, anybody takes a snapshot.

    Args:
        num_speculative_tokens: k.
    """

    def __init__(self, num_speculative_tokens: int) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._totals: Counter[str] = Counter()
        self._accepted = [0] * num_speculative_tokens
        self._finished = dict.fromkeys((*FINISH_REASONS, ERROR), 0)

    def record(self, changed: Sequence[Ticket], *, running: int) -> None:
        """Count the last round of each changed request, and those that have ended."""
        with self._lock:
            self._running = running
            for ticket in changed:
                self._count(ticket)

    def snapshot(self, *, waiting: int) -> CountersSnapshot:
        """The counts now."""
        with self._lock:
            return CountersSnapshot(
                running=self._running,
                waiting=waiting,
                num_drafts=self._totals["drafts"],
                num_draft_tokens=self._totals["draft_tokens"],
                num_accepted_tokens=self._totals["accepted_tokens"],
                accepted_per_position=tuple(self._accepted),
                num_emitted_tokens=self._totals["emitted_tokens"],
                num_prompt_tokens=self._totals["prompt_tokens"],
                finished=dict(self._finished),
            )

    def _count(self, ticket: Ticket) -> None:
        last = ticket.row.take_round()
        if last is not None:
            self._totals["emitted_tokens"] += last.num_emitted_tokens
            self._totals["draft_tokens"] += last.num_draft_tokens
            self._totals["drafts"] += last.num_draft_tokens > 0
            self._totals["accepted_tokens"] += last.num_accepted_tokens
            self._totals["prompt_tokens"] += len(ticket.prompt) if last.is_first else 0
            for position in range(last.num_accepted_tokens):
                self._accepted[position] += 1
        if ticket.settle():
            self._finished[ERROR if ticket.error else ticket.row.finish_reason] += 1
