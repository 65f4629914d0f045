"""What a round costs: measured where a bundle runs it, put together from measured calls elsewhere.

A round is a draft call, a verify call and the host's work. A verify call of K drafts of k tokens is
the target over K * k + 1 tokens, which is measured, and a tail (the head's further rows, sampling
and acceptance), which is what a bundle's verify call takes longer than that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from spec_compile.planning.graph_run import GraphRun
from spec_compile.planning.texts import Options
from spec_compile.runtime.api import Decoder
from spec_compile.runtime.engines.timed import TimedEngine, split_first
from spec_compile.runtime.requests import Options as GenerationArguments

MEASURED, BETWEEN, ESTIMATED = "measured", "interpolated", "estimated"
Size = tuple[int, int]
"""Draft tokens of a draft, and number of drafts."""


@dataclass(frozen=True)
class RoundTimes:
    """Milliseconds of a round.

    Args:
        draft: the draft call.
        target: the verify call; of target-only decoding, the target's.
        host: everything else, per round.
        first_draft, first_target: the calls that read a prompt, mean over the prompts.
        source: MEASURED, BETWEEN two bundles (or one and nothing), or ESTIMATED from other calls.
    """

    draft: float
    target: float
    host: float
    first_draft: float
    first_target: float
    source: str = MEASURED

    def total(self, num_texts: int, num_rounds: float) -> float:
        """Milliseconds of `num_texts` generations that take `num_rounds` rounds in all."""
        later = (num_rounds - num_texts) * (self.draft + self.target)
        first = num_texts * (self.first_draft + self.first_target)
        return first + later + num_rounds * self.host


@dataclass(frozen=True)
class Costs:
    """Measured calls, from which the cost of any round follows.

    Args:
        plain: target-only decoding.
        rounds: of each bundle's size, where the draft computes its law.
        lawless: the same where it computes none, because the rule reads none; may be empty, and
            is then taken to cost the same.
        target: milliseconds of the target over T new tokens, by T.
        draft_rows: milliseconds of one draft call over K rows, by K, with 1 among them.
    """

    plain: RoundTimes
    rounds: Mapping[Size, RoundTimes]
    lawless: Mapping[Size, RoundTimes]
    target: Mapping[int, float]
    draft_rows: Mapping[int, float]

    def of(
        self, num_speculative_tokens: int, num_drafts: int, *, lawless: bool = False
    ) -> RoundTimes | None:
        """A round of this size; None where it is larger than any measured."""
        size = num_speculative_tokens, num_drafts
        own, others = (self.lawless, self.rounds) if lawless else (self.rounds, self.lawless)
        measured: Mapping[int, RoundTimes] = {}
        for known in (own, {**others, **own}):
            if size in known:
                return known[size]
            measured = self._of_count(num_drafts, known)
            if measured and num_speculative_tokens <= max(measured) and self._knows(size):
                return self._between(size, measured)
        if not self._knows(size):
            return None
        single = self.of(num_speculative_tokens, 1) if num_drafts > 1 and not measured else None
        if single is None or num_drafts not in self.draft_rows:
            return None
        draft = single.draft * self.draft_rows[num_drafts] / self.draft_rows[1]
        tail = (single.target - self.target[num_speculative_tokens + 1]) * num_drafts
        target = self.target[num_speculative_tokens * num_drafts + 1] + max(tail, 0.0)
        return _moved(single, draft, target, ESTIMATED)

    def _knows(self, size: Size) -> bool:
        return size[0] * size[1] + 1 in self.target

    def _of_count(
        self, num_drafts: int, rounds: Mapping[Size, RoundTimes]
    ) -> Mapping[int, RoundTimes]:
        """Measured rounds with this many drafts, by k."""
        return {
            k: times
            for (k, count), times in rounds.items()
            if count == num_drafts and k * count + 1 in self.target
        }

    def _between(self, size: Size, measured: Mapping[int, RoundTimes]) -> RoundTimes:
        """On the lines through no draft token at all and the measured sizes."""
        num_tokens, num_drafts = size
        sizes = sorted(measured)
        places = [0, *sizes]
        drafts = [0.0, *(measured[k].draft for k in sizes)]
        tails = [0.0, *(measured[k].target - self.target[k * num_drafts + 1] for k in sizes)]
        tail = float(np.interp(num_tokens, places, tails))
        target = self.target[num_tokens * num_drafts + 1] + tail
        draft = float(np.interp(num_tokens, places, drafts))
        larger = measured[next(k for k in sizes if k > num_tokens)]
        return _moved(larger, draft, target, BETWEEN)


def _moved(base: RoundTimes, draft: float, target: float, source: str) -> RoundTimes:
    """`base` with other calls; what reads the prompt costs as much more or less."""
    first_draft = max(base.first_draft + draft - base.draft, 0.0)
    first_target = max(base.first_target + target - base.target, 0.0)
    return RoundTimes(draft, target, base.host, first_draft, first_target, source)


def measure_rounds(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    options: GenerationArguments,
    tick: Callable[[], None],
) -> dict[bool, RoundTimes]:
    """Real generations, target-only (False) and speculative (True) in turn, prompt by prompt."""
    engine = TimedEngine(decoder.engine)
    timed = Decoder(decoder.bundle, engine, decoder.tokenizer)
    meters = {False: _Meter(), True: _Meter()}
    for number, prompt in enumerate([prompts[0], *prompts]):  # the first warms up
        for speculative in (number % 2 == 0, number % 2 == 1):
            engine.take()
            asked: GenerationArguments = {**options, "speculative": speculative}
            started = time.perf_counter()
            result = timed.generate(list(prompt), **asked)
            wall_ms = 1000.0 * (time.perf_counter() - started)
            if number:
                first, later = split_first(engine.take())
                meters[speculative].add(first, later, wall_ms, result.stats.num_rounds)
        tick()
    return {mode: meter.times() for mode, meter in meters.items()}


class _Meter:
    """Collects the calls of generations; every graph but `draft` runs the target."""

    def __init__(self) -> None:
        self._first: dict[bool, list[float]] = {True: [], False: []}
        self._later: dict[bool, list[float]] = {True: [], False: []}
        self._host_ms, self._rounds = 0.0, 0

    def add(
        self,
        first: Mapping[str, float],
        later: Mapping[str, Sequence[float]],
        wall_ms: float,
        num_rounds: int,
    ) -> None:
        for graph, milliseconds in first.items():
            self._first[graph == "draft"].append(milliseconds)
        for graph, times in later.items():
            self._later[graph == "draft"] += times
        calls = sum(first.values()) + sum(sum(times) for times in later.values())
        self._host_ms += wall_ms - calls
        self._rounds += num_rounds

    def times(self) -> RoundTimes:
        draft, target = (_median(self._later[is_draft]) for is_draft in (True, False))
        first_draft, first_target = (_mean(self._first[is_draft]) for is_draft in (True, False))
        return RoundTimes(draft, target, self._host_ms / self._rounds, first_draft, first_target)


def measure_target(
    decoder: Decoder,
    widths: Sequence[int],
    context: Sequence[int],
    options: Options,
    repeat: int,
) -> dict[int, float]:
    """Median milliseconds of the target over each number of new tokens, behind `context`."""
    graph = GraphRun(decoder.engine, decoder.manifest, "target", options)
    graph.run(context, 0)
    tokens = [context[index % len(context)] for index in range(max(widths))]
    found: dict[int, list[float]] = {width: [] for width in widths}
    for number in range(repeat + 1):
        for width in widths:
            milliseconds = graph.run(tokens[:width], len(context))
            if number:
                found[width].append(milliseconds)
    return {width: statistics.median(times) for width, times in found.items()}


def measure_draft_rows(
    decoder: Decoder,
    counts: Sequence[int],
    context: Sequence[int],
    options: Options,
    repeat: int,
) -> dict[int, float]:
    """Median milliseconds of a draft call over each number of rows, behind `context`."""
    graphs = {
        rows: GraphRun(decoder.engine, decoder.manifest, "draft", options, rows) for rows in counts
    }
    found: dict[int, list[float]] = {rows: [] for rows in counts}
    for graph in graphs.values():
        graph.run(context, 0)
    for number in range(repeat + 1):
        for rows, graph in graphs.items():
            milliseconds = graph.run(context[-2:], len(context) - len(context[-2:]))
            if number:
                found[rows].append(milliseconds)
    return {rows: statistics.median(times) for rows, times in found.items()}


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0
