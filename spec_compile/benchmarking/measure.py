"""Bundles against target-only decoding, interleaved so that every variant sees the same machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spec_compile.benchmarking.phases import Phases, acceptance_by_position
from spec_compile.runtime.api import Decoder, GenerationResult
from spec_compile.runtime.engines.timed import Call, TimedEngine
from spec_compile.runtime.requests import Options
from spec_compile.runtime.stats import GenerationStats, pool

SPECULATIVE, TARGET_ONLY, ADAPTIVE = "speculative", "target-only", "adaptive"

Tick = Callable[[int, int], None]
"""Told of the generations done and of those in all."""


@dataclass(frozen=True)
class Workload:
    """What every variant generates.

    Args:
        groups: token ids of the prompts, grouped as they are decoded side by side.
        options: sampling options, budget and seed.
        repeat: measured passes over all groups.
        warm_up: passes before them that are thrown away.
    """

    groups: Sequence[Sequence[Sequence[int]]]
    options: Options
    repeat: int
    warm_up: int


@dataclass
class Variant:
    """A bundle decoded one way, and what its measured passes gave.

    Args:
        bundle: the bundle's name.
        mode: SPECULATIVE, TARGET_ONLY or ADAPTIVE.
        decoder: of the bundle, on `engine`.
        engine: takes down every graph call.
        passes: statistics of each measured pass, `wall_ms` taken from outside.
        outputs: the token ids of the last pass, in order of prompts.
        phases: where the time of the measured passes went.
    """

    bundle: str
    mode: str
    decoder: Decoder
    engine: TimedEngine
    passes: list[GenerationStats] = field(default_factory=list)
    outputs: list[tuple[int, ...]] = field(default_factory=list)
    phases: Phases = field(default_factory=Phases)

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens over wall time, the median of the passes."""
        return statistics.median(one.tokens_per_second for one in self.passes)

    def figures(self, baseline: Variant) -> dict[str, Any]:
        """All statistics, ready for JSON; rates and times pooled over the passes.

        Args:
            baseline: target-only decoding of the same bundle.
        """
        stats, config = pool(self.passes), self.decoder.manifest.config
        identical = sum(a == b for a, b in zip(self.outputs, baseline.outputs, strict=True))
        return {
            "bundle": self.bundle,
            "mode": self.mode,
            "fusion": config.fusion,
            "rule": config.acceptance,
            "exact": config.exact or self.mode == TARGET_ONLY,
            "num_speculative_tokens": stats.num_speculative_tokens,
            "num_drafts": config.num_drafts,
            **stats.as_dict(),
            "acceptance_by_position": acceptance_by_position(stats),
            "phases_ms": self.phases.as_dict(),
            "tokens_per_second": self.tokens_per_second,
            "tokens_per_second_of_passes": [one.tokens_per_second for one in self.passes],
            "speed_up": self.tokens_per_second / baseline.tokens_per_second,
            "prompts": len(self.outputs),
            "outputs_equal_to_target_only": identical,
        }


def variants_of(bundle: str, decoder: Decoder, *, adaptive: bool = False) -> tuple[Variant, ...]:
    """Target-only decoding of a bundle, then the bundle itself, then with adaptive drafting."""
    engine = TimedEngine(decoder.engine)
    timed = Decoder(decoder.bundle, engine, decoder.tokenizer)
    modes = (TARGET_ONLY, SPECULATIVE, *([ADAPTIVE] if adaptive else []))
    return tuple(Variant(bundle, mode, timed, engine) for mode in modes)


def run_interleaved(variants: Sequence[Variant], workload: Workload, tick: Tick) -> None:
    """Measure: in every pass, each group of prompts goes through all variants in turn."""
    num_passes = workload.warm_up + workload.repeat
    done, total = 0, num_passes * len(workload.groups) * len(variants)
    for number in range(num_passes):
        found: list[list[_Generated]] = [[] for _ in variants]
        for index, group in enumerate(workload.groups):
            for which in _order(len(variants), number + index):
                found[which].append(_generate(variants[which], group, workload.options))
                done += 1
                tick(done, total)
        if number >= workload.warm_up:
            for variant, groups in zip(variants, found, strict=True):
                _keep(variant, groups)


class _Generated(NamedTuple):
    results: list[GenerationResult]
    wall_ms: float
    calls: list[Call]


def _order(count: int, start: int) -> Iterator[int]:
    """Every variant once, another one first each time."""
    return ((start + step) % count for step in range(count))


def _generate(variant: Variant, group: Sequence[Sequence[int]], options: Options) -> _Generated:
    prompts = [list(prompt) for prompt in group]
    asked: Options = {**options, "speculative": variant.mode != TARGET_ONLY}
    if variant.mode == ADAPTIVE:
        asked["adaptive"] = True
    variant.engine.take()
    started = time.perf_counter()
    results = variant.decoder.generate(prompts, **asked)
    wall_ms = 1000.0 * (time.perf_counter() - started)
    return _Generated(results, wall_ms, variant.engine.take())


def _keep(variant: Variant, groups: Sequence[_Generated]) -> None:
    stats = [pool([one.stats for one in group.results], group.wall_ms) for group in groups]
    variant.passes.append(pool(stats))
    variant.outputs = [one.token_ids for group in groups for one in group.results]
    for group in groups:
        num_rounds = max(one.stats.num_rounds for one in group.results)
        variant.phases.add(group.calls, group.wall_ms, num_rounds)
