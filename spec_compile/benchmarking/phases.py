"""Where the time of a round goes: graph calls and the host's own work."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from spec_compile.runtime.engines.timed import Call, split_first
from spec_compile.runtime.stats import GenerationStats, Percentiles


@dataclass
class Phases:
    """The calls of several generations, collected.

    Args:
        first: by graph, milliseconds of the calls that read prompts.
        later: by graph, those of all other calls.
        host_ms: time outside of the calls.
        num_rounds: rounds that all generations took; rows side by side share them.
    """

    first: dict[str, list[float]] = field(default_factory=dict)
    later: dict[str, list[float]] = field(default_factory=dict)
    host_ms: float = 0.0
    num_rounds: int = 0

    def add(self, calls: Sequence[Call], wall_ms: float, num_rounds: int) -> None:
        """One generation: its graph calls, its wall time, its rounds."""
        first, later = split_first(list(calls))
        for graph, milliseconds in first.items():
            self.first.setdefault(graph, []).append(milliseconds)
        for graph, times in later.items():
            self.later.setdefault(graph, []).extend(times)
        self.host_ms += wall_ms - sum(call.milliseconds for call in calls)
        self.num_rounds += num_rounds

    def as_dict(self) -> dict[str, Any]:
        """`calls` by graph, and `host`, the mean per round; all in milliseconds.

        Of each graph `prompt`, the median of the calls that read prompts, and `median`, `p90` and
        `p99` of the others.
        """
        calls = {}
        for graph, times in self.first.items():
            later = self.later.get(graph, [])
            spread = Percentiles.of(later, [1] * len(later))
            calls[graph] = {"prompt": statistics.median(times), **asdict(spread)}
        return {"calls": calls, "host": self.host_ms / max(self.num_rounds, 1)}


def acceptance_by_position(stats: GenerationStats) -> list[float]:
    """Share of the rounds that kept their first, second, .. k-th draft token.

    Of the rounds that proposed one there and were not cut before it; never rises, and the sum of
    all k, plus 1, is the block efficiency of rounds that were not cut.
    """
    shares = []
    for position in range(stats.num_speculative_tokens):
        proposed = [one for one in stats.rounds if one.num_draft_tokens > position]
        kept = sum(one.num_accepted_tokens > position for one in proposed)
        shares.append(kept / max(len(proposed), 1))
    return shares
