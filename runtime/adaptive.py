"""How many draft tokens to verify: what measured costs and acceptance say is fastest.

A round of j draft tokens emits, with a_i the chance that token i is accepted when those before it
were, E(j) = 1 + a_1 + a_1 a_2 + .. + a_1 .. a_j tokens on average, and takes the time of drafting
and of the target over j + 1 tokens. The j of the largest E(j) / time is taken; j = 0 is plain
decoding. Costs and chances are running estimates from the rounds themselves.

What cannot be known without trying costs something when it does not pay. A budget bounds that: it
grows with a small share of the time spent, every speculative round is charged what such a round
takes longer than plain decoding of its tokens, and without budget nothing is drafted.
"""

from __future__ import annotations

import itertools
import operator
import statistics
import threading
from collections import deque
from collections.abc import Sequence

import numpy as np

_SHARE = 0.03  # of all time that trying may cost
_START = 6.0  # plain steps that trying may cost at first, and that gains may save up
_GUESS, _GUESS_WEIGHT = 0.7, 2.0  # chance of acceptance before anything is known
_FADE = 0.97  # weight of the past after each round
# Rounds between two trials. Not many: they also renew costs that were measured in a bad moment.
_SHORTEST_WAIT, _LONGEST_WAIT = 2, 16
_SAMPLES = 5


class Costs:
    """Milliseconds by number of draft tokens: medians of the last samples.

    The first sample of a number is left out: it pays for pages and caches that the next finds warm.
    """

    def __init__(self) -> None:
        self._samples: dict[int, deque[float]] = {}

    def add(self, length: int, milliseconds: float) -> None:
        """Take a sample."""
        if length not in self._samples:
            self._samples[length] = deque(maxlen=_SAMPLES)
        else:
            self._samples[length].append(milliseconds)

    def known(self, length: int) -> bool:
        """Whether this very number was measured."""
        return bool(self._samples.get(length))

    def estimate(self, length: int) -> float:
        """Measured, or on the line between the next measured numbers on both sides."""
        if self.known(length):
            return statistics.median(self._samples[length])
        known = sorted(number for number, samples in self._samples.items() if samples)
        values = [statistics.median(self._samples[number]) for number in known]
        return float(np.interp(length, known, values)) if known else 0.0


class Planner:
    """Chooses the number of draft tokens of each round; shared by the generations of one kind.

    Args:
        num_speculative_tokens: k, the most of them.
    """

    def __init__(self, num_speculative_tokens: int) -> None:
        self._lengths = range(num_speculative_tokens + 1)
        self._costs = Costs()
        self._reached = [0.0] * num_speculative_tokens
        self._accepted = [0.0] * num_speculative_tokens
        self._spent = 0.0  # milliseconds that trying has cost, less what it has gained
        self._elapsed = 0.0
        self._wait, self._waited = _SHORTEST_WAIT, 0
        self._lock = threading.Lock()

    def choose(self, available: Sequence[int]) -> int:
        """The number of draft tokens of the next round.

        Args:
            available: most tokens that each running row can propose.
        """
        with self._lock:
            most = min(max(available, default=0), self._lengths[-1])
            if most == 0 or self._is_exhausted():
                return 0
            for length in (most, 0):
                if not self._costs.known(length):
                    return length
            best = self._fastest(range(most + 1), available)
            if best > 0:
                self._wait, self._waited = _SHORTEST_WAIT, 0
                return best
            return self._trial(most, available)

    def observe(
        self,
        length: int,
        proposed: Sequence[int],
        emitted: Sequence[int],
        milliseconds: float,
        *,
        usual: bool = True,
    ) -> None:
        """Learn from a round.

        Args:
            length: its number of draft tokens.
            proposed: those of each running row.
            emitted: tokens that each of these rows emitted.
            milliseconds: what the round took, drafting and verifying.
            usual: False for a round that read more than others (prompts, or what a draft had not
                read), whose time tells nothing.
        """
        with self._lock:
            self._count(proposed, emitted)
            self._elapsed += milliseconds
            if usual:
                self._costs.add(length, milliseconds)
            if length and emitted and self._costs.known(0):
                # The usual cost, not this round's: a disturbance says nothing about drafting.
                known = self._costs.known(length)
                taken = self._costs.estimate(length) if known else milliseconds
                plain = sum(emitted) / len(emitted) * self._costs.estimate(0)
                gains = -_START * self._costs.estimate(0)
                self._spent = max(self._spent + taken - plain, gains)

    def rates(self) -> list[float]:
        """Estimated chances a_1 .. a_k; one that little is known of leans on the one before it."""
        rates, rate = [], _GUESS
        for reached, accepted in zip(self._reached, self._accepted, strict=True):
            rate = float((accepted + _GUESS_WEIGHT * rate) / (reached + _GUESS_WEIGHT))
            rates.append(rate)
        return rates

    def _fastest(self, lengths: Sequence[int], available: Sequence[int]) -> int:
        """The length of most expected tokens per millisecond, over all rows."""
        kept = [0.0, *itertools.accumulate(itertools.accumulate(self.rates(), operator.mul))]

        def speed(length: int) -> float:
            tokens: float = sum(1.0 + kept[min(length, most)] for most in available)
            return tokens / max(self._costs.estimate(length), 1e-9)

        return max(lengths, key=speed)

    def _is_exhausted(self) -> bool:
        plain = self._costs.estimate(0)
        return self._costs.known(0) and self._spent >= _SHARE * self._elapsed + _START * plain

    def _trial(self, most: int, available: Sequence[int]) -> int:
        """A round that does not seem to pay, now and then, for acceptance may have changed."""
        self._waited += 1
        if self._waited <= self._wait:
            return 0
        self._wait, self._waited = min(2 * self._wait, _LONGEST_WAIT), 0
        return self._fastest(range(1, most + 1), available)

    def _count(self, proposed: Sequence[int], emitted: Sequence[int]) -> None:
        if not any(proposed):
            return
        self._reached = [_FADE * count for count in self._reached]
        self._accepted = [_FADE * count for count in self._accepted]
        for drafted, kept in zip(proposed, emitted, strict=True):
            for place in range(min(kept, drafted)):
                self._reached[place] += 1
            for place in range(kept - 1):
                self._accepted[place] += 1
