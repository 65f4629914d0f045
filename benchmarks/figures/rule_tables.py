"""Tables over bundles of one pair that differ in their acceptance rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.figures.graph_calls import (
    GraphCall,
    time_side_by_side,
    verify_arrays,
    verify_outputs,
)
from benchmarks.figures.report import Cell, Figure, percentiles
from benchmarks.figures.verify_cost import call_without_tail
from spec_compile.bench import BenchOptions, bench_bundles
from spec_compile.benchmarking.measure import SPECULATIVE
from spec_compile.checking.contexts import long_context
from spec_compile.runtime.api import load


def rule_speed(folders: list[Path], options: BenchOptions) -> Figure:
    """Each bundle against its own target alone, in turn: tokens a round and a second."""
    rows: list[list[Cell]] = []
    data: dict[str, Any] = {}
    for folder in folders:
        report = bench_bundles([folder], options)
        data[folder.name] = report
        config = report["bundles"][str(folder)]["config"]
        rows += [
            [*_rule(config), f"{one['temperature']:g}", *_speed(one)]
            for one in report["results"]
            if one["mode"] == SPECULATIVE
        ]
    columns = [
        "rule",
        "K",
        "k",
        "temperature",
        "block efficiency",
        "acceptance",
        "tokens/s",
        "of target-only",
    ]
    length = options.max_new_tokens
    title = f"20 prompts x {length} tokens, each rule and its target alone in turn"
    return Figure(title, columns, rows, data, options.num_threads)


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
        f"{one['tokens_per_second']:.1f}",
        f"{one['speed_up']:.2f}x",
    ]
