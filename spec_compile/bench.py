"""`bench_bundles`: speed of bundles against target-only decoding of the same target."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from spec_compile.benchmarking.machine import describe_machine, versions
from spec_compile.benchmarking.measure import Workload, run_interleaved, variants_of
from spec_compile.checking.contexts import bench_prompts
from spec_compile.checking.result import Progress, no_progress
from spec_compile.errors import ConfigError
from spec_compile.runtime.api import Decoder, load
from spec_compile.runtime.requests import GenerationOptions, Options

_STAGE = "bench"


@dataclass(frozen=True)
class BenchOptions:
    """How to measure, validated on construction.

    Args:
        prompts: texts; None takes the built-in ones.
        max_new_tokens: tokens for each prompt; EOS does not end an output.
        repeat: measured passes over all prompts; figures are their medians.
        warm_up: passes before them that are thrown away.
        temperature, top_k, top_p, min_p: sampling options; 0 is greedy.
        batch_size: prompts decoded side by side.
        num_threads: threads of one graph call; None leaves the choice to the engine.
        seed: of the random numbers.
        verify_hash: compare every file with its SHA-256 on loading.
        adaptive: measure adaptive drafting too.

    Raises:
        ConfigError: a value that no measurement can use.
    """

    prompts: Sequence[str] | None = None
    max_new_tokens: int = 128
    repeat: int = 3
    warm_up: int = 1
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    batch_size: int = 1
    num_threads: int | None = None
    seed: int = 0
    verify_hash: bool = True
    adaptive: bool = False

    def __post_init__(self) -> None:
        GenerationOptions(**self.generation()).row_seeds(1)
        for name, least in (("repeat", 1), ("warm_up", 0), ("batch_size", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least {least}")

    def generation(self) -> Options:
        """The options of every generation."""
        return {
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
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
        `machine`, `versions`, `workload`, and `results`: for each bundle the figures of
        `target-only` and of `speculative` decoding, and of `adaptive` if asked for, ready for
        JSON.

    Raises:
        SpecCompileError: a bundle that cannot be opened or cannot serve the prompts.
    """
    options = options or BenchOptions()
    decoders = [
        load(path, num_threads=options.num_threads, verify_hash=options.verify_hash)
        for path in paths
    ]
    pairs = [
        variants_of(str(path), one, adaptive=options.adaptive)
        for path, one in zip(paths, decoders, strict=True)
    ]
    prompts = _shared_prompts(decoders, options)
    workload = _workload(prompts, decoders, options)
    variants = [variant for pair in pairs for variant in pair]
    run_interleaved(variants, workload, partial(progress, _STAGE))
    return {
        "machine": describe_machine(options.num_threads),
        "versions": versions(),
        "workload": {
            "prompts": len(prompts),
            "prompt_tokens": [len(prompt) for prompt in prompts],
            **{k: v for k, v in vars(options).items() if k not in ("prompts", "num_threads")},
        },
        "bundles": {str(path): _describe(d) for path, d in zip(paths, decoders, strict=True)},
        "results": [one.figures(pair[0]) for pair in pairs for one in pair],
    }


def _describe(decoder: Decoder) -> dict[str, Any]:
    manifest = decoder.manifest
    return {"config": vars(manifest.config), "created_by": dict(manifest.created_by)}


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


def _workload(
    prompts: Sequence[Sequence[int]], decoders: Sequence[Decoder], options: BenchOptions
) -> Workload:
    for decoder in decoders:
        config = decoder.manifest.config
        if options.batch_size > config.batch_size:
            raise ConfigError(
                f"batch_size={options.batch_size} is more than the {config.batch_size} rows that "
                f"{decoder.bundle.folder} was exported for"
            )
    size = options.batch_size
    groups = [prompts[first : first + size] for first in range(0, len(prompts), size)]
    return Workload(groups, options.generation(), options.repeat, options.warm_up)
