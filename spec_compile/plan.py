"""`plan_bundles`: which k, rule and number of drafts a pair should be exported with."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from spec_compile.benchmarking.machine import describe_machine, versions
from spec_compile.checking.contexts import bench_prompts
from spec_compile.checking.result import Progress, no_progress
from spec_compile.errors import ConfigError
from spec_compile.planning.bundles import weights_of
from spec_compile.planning.costs import Size
from spec_compile.planning.models import Choice, choices, exact_rules, serves
from spec_compile.planning.predict import Measured, Prediction, law_source, measure, num_ticks
from spec_compile.runtime.api import Decoder, load
from spec_compile.runtime.requests import GenerationOptions

_STAGE = "plan"


@dataclass(frozen=True)
class PlanOptions:
    """What to plan for, validated on construction.

    Args:
        prompts: texts; None takes the built-in ones.
        max_new_tokens: tokens that each prompt will be continued by.
        temperatures: each gets a table; the pick is the best over all of them.
        top_k, top_p, min_p: further sampling options.
        rules: acceptance rules to look at; None takes all exact ones.
        num_drafts: numbers of drafts a round to look at, for rules that take several.
        max_speculative_tokens: largest k; None takes the largest of the bundles.
        num_threads: threads of one graph call; None leaves the choice to the engine.
        seed: of the texts.
        verify_hash: compare every file with its SHA-256 on loading.

    Raises:
        ConfigError: a value that no plan can use.
    """

    prompts: Sequence[str] | None = None
    max_new_tokens: int = 64
    temperatures: Sequence[float] = (0.0, 1.0)
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    rules: Sequence[str] | None = None
    num_drafts: Sequence[int] = (1, 2, 4)
    max_speculative_tokens: int | None = None
    num_threads: int | None = None
    seed: int = 0
    verify_hash: bool = True

    def __post_init__(self) -> None:
        if not self.temperatures:
            raise ConfigError("temperatures is empty; give at least one")
        for temperature in self.temperatures:
            GenerationOptions(
                max_new_tokens=self.max_new_tokens,
                temperature=temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                seed=self.seed,
            ).row_seeds(1)
        for count in self.num_drafts:
            if count < 1:
                raise ConfigError(f"num_drafts={count} must be at least 1")
        if self.max_speculative_tokens is not None and self.max_speculative_tokens < 1:
            raise ConfigError(
                f"max_speculative_tokens={self.max_speculative_tokens} must be at least 1"
            )
        choices(self.rules or exact_rules(), self.num_drafts)


def plan_bundles(
    paths: Sequence[str | os.PathLike[str]],
    options: PlanOptions | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Measure a pair and predict what each k, rule and number of drafts gives.

    Args:
        paths: bundles of one pair, fusion `verify`. Laws come from one of them; the cost of a round
            is measured for the sizes that they have, and put together from single calls for others.
        options: what for; None takes the defaults.
        progress: told of each step.

    Returns:
        `machine`, `versions`, `bundles`, `workload`, `settings` (for each temperature the grid,
        target-only decoding and the transport ceiling) and `pick`, ready for JSON.

    Raises:
        SpecCompileError: a bundle that cannot be opened or cannot serve the prompts.
    """
    options = options or PlanOptions()
    decoders = [
        load(path, num_threads=options.num_threads, verify_hash=options.verify_hash)
        for path in paths
    ]
    _refuse_sources(decoders)
    _same_pair(decoders)
    prompts = _prompts(decoders, options)
    wanted = choices(options.rules or exact_rules(), options.num_drafts)
    sizes = _sizes(decoders, wanted, options)
    total = len(options.temperatures) * num_ticks(decoders, len(prompts), wanted)
    done = iter(range(1, total + 1))
    found: list[tuple[float, Measured]] = []
    for temperature in options.temperatures:
        sampling = (temperature, options.top_k, options.top_p, options.min_p)
        served = [choice for choice in wanted if serves(choice, temperature, 1)]
        if not served:
            raise ConfigError(f"rule greedy has no temperature but 0, not {temperature:g}")
        measured = measure(
            decoders,
            prompts,
            sampling,
            served,
            sizes,
            options.max_new_tokens,
            options.seed,
            lambda: progress(_STAGE, next(done, total), total),
        )
        found.append((temperature, measured))
    return {
        "machine": describe_machine(options.num_threads),
        "versions": versions(),
        "bundles": {str(p): vars(d.manifest.config) for p, d in zip(paths, decoders, strict=True)},
        "models": {name: model.source for name, model in decoders[0].manifest.models.items()},
        "workload": _workload(prompts, options),
        "settings": [_setting(*each, wanted, sizes) for each in found],
        "pick": _pick(found, wanted, sizes),
    }


def _workload(prompts: Sequence[Sequence[int]], options: PlanOptions) -> dict[str, Any]:
    """The prompts, and the options that shape a plan, ready for JSON."""
    hidden = ("prompts", "num_threads", "verify_hash")
    given = {name: value for name, value in vars(options).items() if name not in hidden}
    plain = {name: list(v) if isinstance(v, tuple) else v for name, v in given.items()}
    return {
        "prompts": len(prompts),
        "prompt_tokens": [len(prompt) for prompt in prompts],
        **plain,
    }


def _setting(
    temperature: float, measured: Measured, wanted: Sequence[Choice], sizes: Sequence[Size]
) -> dict[str, Any]:
    plain, seconds = measured.costs.plain, measured.plain_milliseconds / 1000.0
    return {
        "temperature": temperature,
        "target_only": {
            "tokens_per_second": measured.num_texts * measured.num_tokens / seconds,
            "target_ms": plain.target,
            "host_ms": plain.host,
            "first_ms": plain.first_target,
        },
        "target_ms": {str(width): ms for width, ms in measured.costs.target.items()},
        "transport_ceiling": {str(count): one for count, one in measured.ceilings().items()},
        "grid": [
            one.as_dict()
            for choice in wanted
            if serves(choice, temperature, 1)
            for one in _predictions(measured, choice, temperature, sizes)
        ],
    }


def _predictions(
    measured: Measured, choice: Choice, temperature: float, sizes: Sequence[Size]
) -> Iterator[Prediction]:
    for num_tokens, num_drafts in sizes:
        if num_drafts == choice.num_drafts and serves(choice, temperature, num_tokens):
            found = measured.predict(choice, num_tokens)
            if found is not None:
                yield found


def _pick(
    found: Sequence[tuple[float, Measured]], wanted: Sequence[Choice], sizes: Sequence[Size]
) -> dict[str, Any] | None:
    """The configuration that takes the least time over all temperatures, each weighing the same.

    None when no rule serves them all. At most 1 as `speed_up` says that speculation does not pay.
    """
    best: tuple[float, Choice, int] | None = None
    for choice in wanted:
        for num_tokens, num_drafts in sizes:
            if num_drafts != choice.num_drafts:
                continue
            if not all(serves(choice, temperature, num_tokens) for temperature, _ in found):
                continue
            predicted = [measured.predict(choice, num_tokens) for _, measured in found]
            shares = [1.0 / one.speed_up for one in predicted if one is not None]
            if len(shares) == len(found) and (best is None or fmean(shares) < best[0]):
                best = fmean(shares), choice, num_tokens
    if best is None:
        return None
    return {
        "rule": best[1].rule,
        "num_drafts": best[1].num_drafts,
        "num_speculative_tokens": best[2],
        "speed_up": 1.0 / best[0],
    }


def _sizes(
    decoders: Sequence[Decoder], wanted: Sequence[Choice], options: PlanOptions
) -> list[Size]:
    """Every k with every number of drafts that a rule wants."""
    configs = [decoder.manifest.config for decoder in decoders]
    largest = max(config.num_speculative_tokens for config in configs)
    if options.max_speculative_tokens is not None:
        largest = min(largest, options.max_speculative_tokens)
    counts = sorted({choice.num_drafts for choice in wanted})
    return [(k, count) for count in counts for k in range(1, largest + 1)]


def _refuse_sources(decoders: Sequence[Decoder]) -> None:
    if any(decoder.manifest.reads_source for decoder in decoders):
        raise ConfigError(
            "plan does not foresee encoder-decoder models, whose costs hold the reading of a "
            "source too; measure their bundles with spec-compile bench"
        )


def _same_pair(decoders: Sequence[Decoder]) -> None:
    """Refuse bundles whose costs and laws do not belong together."""
    law_source(decoders)
    for decoder in decoders:
        if weights_of(decoder) != weights_of(decoders[0]):
            raise ConfigError(
                f"{decoder.bundle.folder} holds other models than {decoders[0].bundle.folder}; "
                "plan looks at one pair at a time"
            )


def _prompts(decoders: Sequence[Decoder], options: PlanOptions) -> list[list[int]]:
    prompts, *others = (bench_prompts(one, options.prompts, options.seed) for one in decoders)
    if any(other != prompts for other in others):
        raise ConfigError(
            "the bundles turn the prompts into different tokens (other capacity); "
            "give short prompts with --prompt-file"
        )
    capacity = min(decoder.manifest.config.max_length for decoder in decoders)
    longest = max(map(len, prompts))
    if longest + options.max_new_tokens > capacity:
        raise ConfigError(
            f"a prompt of {longest} tokens and max_new_tokens={options.max_new_tokens} do not fit "
            f"into the {capacity} tokens that a row holds; give fewer"
        )
    return prompts
