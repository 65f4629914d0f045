"""Bundles against target-only decoding, interleaved so that every variant sees the same machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from spec_compile.runtime.api import Decoder, GenerationResult
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
        decoder: of the bundle.
        passes: statistics of each measured pass, `wall_ms` taken from outside.
        outputs: the token ids of the last pass, in order of prompts.
    """

    bundle: str
    mode: str
    decoder: Decoder
    passes: list[GenerationStats] = field(default_factory=list)
    outputs: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens over wall time, the median of the passes."""
        return statistics.median(one.tokens_per_second for one in self.passes)

    def figures(self, baseline: Variant) -> dict[str, Any]:
        """All statistics, ready for JSON; rates and times pooled over the passes.

        Args:
            baseline: target-only decoding of the same bundle.
        """
        pooled = pool(self.passes).as_dict()
        identical = sum(a == b for a, b in zip(self.outputs, baseline.outputs, strict=True))
        return {
            "bundle": self.bundle,
            "mode": self.mode,
            **pooled,
            "tokens_per_second": self.tokens_per_second,
            "tokens_per_second_of_passes": [one.tokens_per_second for one in self.passes],
            "speed_up": self.tokens_per_second / baseline.tokens_per_second,
            "prompts": len(self.outputs),
            "outputs_equal_to_target_only": identical,
        }


def variants_of(bundle: str, decoder: Decoder, *, adaptive: bool = False) -> tuple[Variant, ...]:
    """Target-only decoding of a bundle, then the bundle itself, then with adaptive drafting."""
    modes = (TARGET_ONLY, SPECULATIVE, *([ADAPTIVE] if adaptive else []))
    return tuple(Variant(bundle, mode, decoder) for mode in modes)


def run_interleaved(variants: Sequence[Variant], workload: Workload, tick: Tick) -> None:
    """Measure: in every pass, each group of prompts goes through all variants in turn."""
    num_passes = workload.warm_up + workload.repeat
    done, total = 0, num_passes * len(workload.groups) * len(variants)
    for number in range(num_passes):
        found: list[list[tuple[list[GenerationResult], float]]] = [[] for _ in variants]
        for index, group in enumerate(workload.groups):
            for which in _order(len(variants), number + index):
                found[which].append(_generate(variants[which], group, workload.options))
                done += 1
                tick(done, total)
        if number >= workload.warm_up:
            for variant, groups in zip(variants, found, strict=True):
                _keep(variant, groups)


def _order(count: int, start: int) -> Iterator[int]:
    """Every variant once, another one first each time."""
    return ((start + step) % count for step in range(count))


def _generate(
    variant: Variant, group: Sequence[Sequence[int]], options: Options
) -> tuple[list[GenerationResult], float]:
    prompts = [list(prompt) for prompt in group]
    asked: Options = {**options, "speculative": variant.mode != TARGET_ONLY}
    if variant.mode == ADAPTIVE:
        asked["adaptive"] = True
    started = time.perf_counter()
    results = variant.decoder.generate(prompts, **asked)
    return results, 1000.0 * (time.perf_counter() - started)


def _keep(variant: Variant, groups: Sequence[tuple[list[GenerationResult], float]]) -> None:
    stats = [pool([one.stats for one in results], wall_ms) for results, wall_ms in groups]
    variant.passes.append(pool(stats))
    variant.outputs = [one.token_ids for results, _ in groups for one in results]
