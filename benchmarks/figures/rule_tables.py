"""Tables over bundles of one pair that differ in their acceptance rule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.figures.graph_calls import (
    GraphCall,
    time_side_by_side,
    verify_arrays,
    verify_outputs,
)
from benchmarks.figures.report import Cell, Figure, percentiles
from benchmarks.figures.verify_cost import call_without_tail
from spec_compile.benchmarking.measure import (
    SPECULATIVE,
    TARGET_ONLY,
    Variant,
    Workload,
    run_interleaved,
    variants_of,
)
from spec_compile.checking.contexts import long_context
from spec_compile.prompts import BUILT_IN
from spec_compile.runtime.api import Decoder, load
from spec_compile.runtime.requests import Options


class Load(NamedTuple):
    """What every bundle generates.

    Args:
        num_prompts: of the built-in ones, evenly chosen.
        max_new_tokens: of each, EOS ignored.
        temperatures: each is a row of the table.
        num_threads: threads of one graph call; None is the engine's choice.
    """

    num_prompts: int
    max_new_tokens: int
    temperatures: Sequence[float]
    num_threads: int | None


def rule_speed(folders: list[Path], load_of: Load) -> Figure:
    """Each bundle: tokens a round and a second, beside its target alone right before and after."""
    rows: list[list[Cell]] = []
    data: dict[str, Any] = {}
    for folder in folders:
        decoder = load(folder, num_threads=load_of.num_threads)
        config, found = vars(decoder.manifest.config), _rule_speed(str(folder), decoder, load_of)
        data[folder.name] = found
        rows += [[*_rule(config), f"{one['temperature']:g}", *_speed(one)] for one in found]
    columns = ["rule", "K", "k", "temperature", "block efficiency", "acceptance"]
    columns += ["ms a round", "tokens/s", "of target-only"]
    title = f"{load_of.num_prompts} prompts x {load_of.max_new_tokens} tokens"
    return Figure(title, columns, rows, data, load_of.num_threads)


def _rule_speed(name: str, decoder: Decoder, load_of: Load) -> list[dict[str, Any]]:
    step = len(BUILT_IN) / load_of.num_prompts
    prompts = [BUILT_IN[int(step * index)] for index in range(load_of.num_prompts)]
    groups = [[decoder.tokenizer.encode(prompt)] for prompt in prompts]  # type: ignore[union-attr]

    def measured(mode: str, temperature: float, groups: list[list[list[int]]]) -> Variant:
        options: Options = {
            "temperature": temperature,
            "max_new_tokens": load_of.max_new_tokens,
            "ignore_eos": True,
            "seed": 0,
        }
        variant = next(one for one in variants_of(name, decoder) if one.mode == mode)
        run_interleaved([variant], Workload(groups, options, 1, 0), lambda *_: None)
        return variant

    # The first call of a graph opens it.
    for mode in (TARGET_ONLY, SPECULATIVE):
        decoder.generate([groups[0][0]], max_new_tokens=8, speculative=mode == SPECULATIVE)
    few = groups[:: max(len(groups) // 2, 1)]
    before = measured(TARGET_ONLY, load_of.temperatures[0], few)
    ours = {value: measured(SPECULATIVE, value, groups) for value in load_of.temperatures}
    after = measured(TARGET_ONLY, load_of.temperatures[0], few)
    alone = (before.tokens_per_second + after.tokens_per_second) / 2
    return [
        {**one.figures(one), "temperature": value, "speed_up": one.tokens_per_second / alone}
        for value, one in ours.items()
    ]


def rule_tails(folders: list[Path], valid: int, repeat: int, num_threads: int | None) -> Figure:
    """The verify call of each bundle against the same graph cut at its logits, temperature 1."""
    rows: list[list[Cell]] = []
    data: dict[str, Any] = {}
    for folder in folders:
        decoder = load(folder, num_threads=num_threads)
        arrays = verify_arrays(decoder, long_context(decoder, valid + 1, 0), num_threads)
        path = decoder.bundle.path(decoder.manifest.graphs["verify"].file)
        whole = GraphCall(path, path.parent, num_threads)
        calls = {
            "cut": call_without_tail(decoder, arrays, num_threads),
            "whole": whole.bind(arrays, verify_outputs(decoder, arrays)),
        }
        times = time_side_by_side(calls, repeat)
        cut, all_of_it = (percentiles(times[name])[1] for name in calls)
        data[folder.name] = times
        ratio = f"{all_of_it / cut:.3f}"
        rows.append([*_rule(vars(decoder.manifest.config)), cut, all_of_it, ratio])
    columns = ["rule", "K", "k", "cut at the logits, ms", "whole call, ms", "ratio"]
    title = f"Verify call, one row, {valid} valid entries, medians of {repeat} calls in turn"
    return Figure(title, columns, rows, data, num_threads)


def _rule(config: dict[str, Any]) -> list[Cell]:
    return [config["acceptance"], config["num_drafts"], config["num_speculative_tokens"]]


def _speed(one: dict[str, Any]) -> list[Cell]:
    return [
        f"{one['block_efficiency']:.2f}",
        f"{one['acceptance_rate']:.2f}",
        f"{one['wall_ms'] / one['num_rounds']:.1f}",
        f"{one['tokens_per_second']:.1f}",
        f"{one['speed_up']:.2f}x",
    ]
