"""What a generation did and how long it took, under names and formulas that are written down."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np


@dataclass(frozen=True)
class Percentiles:
    """Median, 90th and 99th percentile (linear interpolation); zeros when nothing was measured."""

    median: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float], weights: Sequence[int]) -> Percentiles:
        """Percentiles of `values`, each taken as often as its weight says."""
        repeated = np.repeat(np.asarray(values, dtype=np.float64), np.asarray(weights, dtype=int))
        if repeated.size == 0:
            return cls(0.0, 0.0, 0.0)
        median, p90, p99 = np.percentile(repeated, [50, 90, 99])
        return cls(float(median), float(p90), float(p99))


class Round(NamedTuple):
    """One round of one row, as counted.

    A round proposes up to k draft tokens and emits `num_accepted + 1`. When the row ends inside the
    block (EOS, stop string, budget, capacity), what lies beyond the last kept token counts nowhere:
    m kept tokens then count as m proposed, m accepted and m emitted, as all are draft tokens.

    Args:
        num_draft_tokens: draft tokens proposed.
        num_accepted_tokens: draft tokens kept.
        num_emitted_tokens: tokens kept.
        milliseconds: wall time of the round; rows of one batch share it.
        is_first: the prompt's own call.
    """

    num_draft_tokens: int
    num_accepted_tokens: int
    num_emitted_tokens: int
    milliseconds: float
    is_first: bool


@dataclass(frozen=True)
class GenerationStats:
    """Statistics of one row, or of several pooled by `pool`.

    The prompt's call is the first round: it, too, proposes and emits.

    Args:
        num_speculative_tokens: k; 0 for target-only decoding.
        rounds: every round, in order.
        wall_ms: time spent in the row's rounds; loading a graph on first use, and pauses between
            the pieces of a stream, are not part of it.
    """

    num_speculative_tokens: int
    rounds: tuple[Round, ...]
    wall_ms: float

    @property
    def num_rounds(self) -> int:
        """Rounds that emitted, the prompt's included."""
        return len(self.rounds)

    @property
    def num_draft_tokens(self) -> int:
        """Draft tokens proposed: up to k per round, fewer in one that was cut (see `Round`)."""
        return sum(r.num_draft_tokens for r in self.rounds)

    @property
    def num_accepted_tokens(self) -> int:
        """Draft tokens that were accepted and kept."""
        return sum(r.num_accepted_tokens for r in self.rounds)

    @property
    def num_emitted_tokens(self) -> int:
        """Tokens kept, EOS included; equals the length of `token_ids`."""
        return sum(r.num_emitted_tokens for r in self.rounds)

    @property
    def acceptance_rate(self) -> float:
        """num_accepted_tokens / num_draft_tokens; 0 when none was proposed."""
        return self.num_accepted_tokens / max(self.num_draft_tokens, 1)

    @property
    def block_efficiency(self) -> float:
        """num_emitted_tokens / num_rounds (1 .. k + 1); 0 without a round."""
        return self.num_emitted_tokens / max(self.num_rounds, 1)

    @property
    def acceptance_histogram(self) -> tuple[int, ...]:
        """Rounds that kept 0, 1, .. k draft tokens: k + 1 numbers whose sum is num_rounds."""
        counts = [0] * (self.num_speculative_tokens + 1)
        for one in self.rounds:
            counts[one.num_accepted_tokens] += 1
        return tuple(counts)

    @property
    def ttft_ms(self) -> float:
        """Time to first token: the first round's time; of pooled rows, the median."""
        firsts = [r.milliseconds for r in self.rounds if r.is_first]
        return statistics.median(firsts) if firsts else 0.0

    @property
    def tpot_ms(self) -> Percentiles:
        """Time per output token after the first round: a round of d ms that kept m tokens is m
        values of d / m. The rows of one batch share d, so it is a latency, not a throughput.
        """
        later = [r for r in self.rounds if not r.is_first]
        values = [r.milliseconds / r.num_emitted_tokens for r in later]
        return Percentiles.of(values, [r.num_emitted_tokens for r in later])

    @property
    def tokens_per_second(self) -> float:
        """1000 * num_emitted_tokens / wall_ms, the prompt's call included."""
        return 1000.0 * self.num_emitted_tokens / self.wall_ms if self.wall_ms > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """All statistics under their names, ready for JSON (single rounds left out)."""
        return {
            "num_rounds": self.num_rounds,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": self.num_accepted_tokens,
            "num_emitted_tokens": self.num_emitted_tokens,
            "acceptance_rate": self.acceptance_rate,
            "block_efficiency": self.block_efficiency,
            "acceptance_histogram": list(self.acceptance_histogram),
            "ttft_ms": self.ttft_ms,
            "tpot_ms": asdict(self.tpot_ms),
            "wall_ms": self.wall_ms,
            "tokens_per_second": self.tokens_per_second,
        }


def pool(stats: Sequence[GenerationStats], wall_ms: float | None = None) -> GenerationStats:
    """Statistics of several rows taken together: counts add up, rates are of the sums.

    Args:
        stats: rows decoded with the same k; at least one.
        wall_ms: wall time of all of them; None adds their own, right when none ran side by side.
    """
    total = sum(one.wall_ms for one in stats) if wall_ms is None else wall_ms
    rounds = tuple(r for one in stats for r in one.rounds)
    return GenerationStats(stats[0].num_speculative_tokens, rounds, total)
