"""`bench_bundles`: speed of bundles against target-only decoding of the same target."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spec_compile.benchmarking.availability import unavailable_engines
from spec_compile.benchmarking.machine import describe_machine, versions
from spec_compile.benchmarking.measure import (
    SPECULATIVE,
    Tick,
    Workload,
    run_interleaved,
    variants_of,
)
from spec_compile.benchmarking.memory import measure_memory
from spec_compile.checking.contexts import bench_prompts
from spec_compile.checking.result import Progress, no_progress
from spec_compile.errors import ConfigError
from spec_compile.planning.bundles import num_steps, predict_bundles, predictable
from spec_compile.runtime.api import Decoder, load
from spec_compile.runtime.requests import GenerationOptions, Options, check_options

_STAGE, _PREDICT = "bench", "predict"


@dataclass(frozen=True)
class BenchOptions:
    """How to measure, validated on construction.

    Args:
        prompts: texts; None takes the built-in ones.
        max_new_tokens: tokens for each prompt; EOS does not end an output.
        repeat: measured passes over all prompts; figures are their medians.
        warm_up: passes before them that are thrown away.
        temperatures: each measured by itself; 0 is greedy.
        top_k, top_p, min_p: further sampling options.
        batch_sizes: prompts decoded side by side; each measured by itself.
        num_threads: threads of one graph call; None leaves the choice to the engine.
        seed: of the random numbers.
        verify_hash: compare every file with its SHA-256 on loading.
        memory: also start a process for each bundle that measures its peak memory.
        predict: also predict the speed-up of each bundle of fusion `verify`, as `plan` does; None
            does so where there are bundles of several k, and laws can be had.
        adaptive: measure adaptive drafting too.
        device: where ONNX Runtime runs the graphs, as in `spec_compile.load`.

    Raises:
        ConfigError: a value that no measurement can use.
    """

    prompts: Sequence[str] | None = None
    max_new_tokens: int = 128
    repeat: int = 3
    warm_up: int = 1
    temperatures: Sequence[float] = (0.0,)
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    batch_sizes: Sequence[int] = (1,)
    num_threads: int | None = None
    seed: int = 0
    verify_hash: bool = True
    memory: bool = True
    predict: bool | None = False
    adaptive: bool = False
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("temperatures", "batch_sizes"):
            if not getattr(self, name):
                raise ConfigError(f"{name} is empty; give at least one")
        for temperature in self.temperatures:
            GenerationOptions(**self.generation(temperature)).row_seeds(1)
        numbers = [("repeat", self.repeat, 1), ("warm_up", self.warm_up, 0)]
        for name, value, least in [*numbers, *(("batch_size", b, 1) for b in self.batch_sizes)]:
            if value < least:
                raise ConfigError(f"{name}={value} must be at least {least}")

    def generation(self, temperature: float) -> Options:
        """The options of every generation at this temperature."""
        return {
            "max_new_tokens": self.max_new_tokens,
            "temperature": temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "seed": self.seed,
            "ignore_eos": True,
        }


def bench_bundles(
    paths: Sequence[str | os.PathLike[str]],
    options: BenchOptions | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Measure bundles in one interleaved run.

    Args:
        paths: folders of bundles; each is compared with its own target alone, same engine.
        options: how; None takes the defaults.
        progress: told of each generation.

    Returns:
        `machine`, `versions`, `workload`, `bundles`, `not_available` (engines that this machine
        cannot run, with the reason), and `results`: for each batch size,
        temperature and bundle the figures of `target-only` and of `speculative` decoding, and of
        `adaptive` if asked for, ready for JSON.

    Raises:
        SpecCompileError: a bundle that cannot be opened or cannot serve the prompts.
    """
    options = options or BenchOptions()
    decoders = [
        load(
            path,
            num_threads=options.num_threads,
            verify_hash=options.verify_hash,
            device=options.device,
        )
        for path in paths
    ]
    prompts = _shared_prompts(decoders, options)
    _check_settings(decoders, options)
    predicts = _predicts(decoders, prompts, options)
    settings = list(itertools.product(options.batch_sizes, options.temperatures))
    results: list[dict[str, Any]] = []
    for number, setting in enumerate(settings):

        def tick(done: int, total: int, number: int = number) -> None:
            progress(_STAGE, number * total + done, len(settings) * total)

        found = _measure_setting(paths, decoders, prompts, options, setting, tick)
        results += [_of_setting(one, setting) for one in found]
    named = dict(zip(map(str, paths), decoders, strict=True))
    if predicts:
        _add_predictions(results, named, prompts, options, progress)
    given = {k: v for k, v in vars(options).items() if k not in ("prompts", "num_threads")}
    given |= {name: list(given[name]) for name in ("temperatures", "batch_sizes")}
    return {
        "machine": describe_machine(options.num_threads),
        "versions": versions(),
        "workload": {
            "prompts": len(prompts),
            "prompt_tokens": [len(prompt) for prompt in prompts],
            **given,
        },
        "bundles": {name: _describe(decoder, options) for name, decoder in named.items()},
        "not_available": unavailable_engines(),
        "results": results,
    }


def _measure_setting(
    paths: Sequence[str | os.PathLike[str]],
    decoders: Sequence[Decoder],
    prompts: Sequence[Sequence[int]],
    options: BenchOptions,
    setting: tuple[int, float],
    tick: Tick,
) -> list[dict[str, Any]]:
    """Figures of every bundle at one batch size and temperature."""
    size, temperature = setting
    pairs = [
        variants_of(str(path), one, adaptive=options.adaptive)
        for path, one in zip(paths, decoders, strict=True)
    ]
    groups = [prompts[first : first + size] for first in range(0, len(prompts), size)]
    asked = options.generation(temperature)
    workload = Workload(groups, asked, options.repeat, options.warm_up)
    run_interleaved([variant for pair in pairs for variant in pair], workload, tick)
    return [one.figures(pair[0]) for pair in pairs for one in pair]


def _of_setting(figures: dict[str, Any], setting: tuple[int, float]) -> dict[str, Any]:
    """`figures` with batch size and temperature, behind the bundle and the mode."""
    size, temperature = setting
    head = {name: figures[name] for name in ("bundle", "mode")}
    return {**head, "batch_size": size, "temperature": temperature, **figures}


def _describe(decoder: Decoder, options: BenchOptions) -> dict[str, Any]:
    manifest = decoder.manifest
    memory: dict[str, int | None] = {}
    if options.memory and options.device == "cpu":  # of a device, it would be another run's
        memory = measure_memory(decoder.bundle.folder, options.num_threads)
    return {
        "config": vars(manifest.config),
        "models": {name: model.source for name, model in manifest.models.items()},
        "created_by": dict(manifest.created_by),
        **memory,
    }


def _shared_prompts(decoders: Sequence[Decoder], options: BenchOptions) -> list[list[int]]:
    """The same token ids for every bundle: speeds over different prompts do not compare.

    Raises:
        ConfigError: the bundles' tokenizers or capacities give different ids.
    """
    prompts, *others = (bench_prompts(one, options.prompts, options.seed) for one in decoders)
    if any(other != prompts for other in others):
        raise ConfigError(
            "the bundles turn the prompts into different tokens (other tokenizer or capacity); "
            "measure them one by one, or give short prompts with --prompt-file"
        )
    return prompts


def _check_settings(decoders: Sequence[Decoder], options: BenchOptions) -> None:
    """Refuse what a bundle cannot do before anything is measured."""
    for decoder in decoders:
        config = decoder.manifest.config
        if max(options.batch_sizes) > config.batch_size:
            raise ConfigError(
                f"batch_size={max(options.batch_sizes)} is more than the {config.batch_size} rows "
                f"that {decoder.bundle.folder} was exported for"
            )
        for temperature in options.temperatures:
            check_options(GenerationOptions(**options.generation(temperature)), decoder.manifest)


def _add_predictions(
    results: Sequence[dict[str, Any]],
    named: Mapping[str, Decoder],
    prompts: Sequence[Sequence[int]],
    options: BenchOptions,
    progress: Progress,
) -> None:
    """Give speculative results of one row a `predicted_speed_up`, as `plan` foresees it."""
    decoders = list(named.values())
    total = num_steps(decoders, len(prompts)) * len(options.temperatures)
    steps = itertools.count(1)
    for temperature in options.temperatures:
        found = predict_bundles(
            decoders,
            prompts,
            (temperature, options.top_k, options.top_p, options.min_p),
            options.max_new_tokens,
            options.seed,
            lambda: progress(_PREDICT, min(next(steps), total), total),
        )
        predicted = dict(zip(named, found, strict=True))
        for one in results:
            mine = predicted[one["bundle"]] if one["mode"] == SPECULATIVE else None
            if mine and (one["batch_size"], one["temperature"]) == (1, temperature):
                one["predicted_speed_up"] = mine.speed_up
                one["predicted_block_efficiency"] = mine.block_efficiency


def _predicts(
    decoders: Sequence[Decoder], prompts: Sequence[Sequence[int]], options: BenchOptions
) -> bool:
    """Whether to predict: as told, or where it makes a curve over k.

    Raises:
        ConfigError: it was told to, but cannot.
    """
    able = [decoders[place] for group in predictable(decoders) for place in group]
    capacity = min((decoder.manifest.config.max_length for decoder in able), default=0)
    fits = max(map(len, prompts)) + options.max_new_tokens <= capacity
    if options.predict and not able:
        raise ConfigError(
            "--predict needs a bundle of fusion verify whose rule uses the draft's laws"
        )
    if options.predict and not fits:
        raise ConfigError(
            f"--predict continues every prompt by {options.max_new_tokens} tokens, which does not "
            f"fit into the {capacity} tokens that a row holds; give fewer"
        )
    sizes = {decoder.manifest.config.num_speculative_tokens for decoder in able}
    return bool(options.predict or (options.predict is None and fits and len(sizes) > 1))
