"""Greedy tokens of a bundle against target-only decoding."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from benchmarks.figures.report import Cell, Figure
from spec_compile.checking.contexts import bench_prompts
from spec_compile.checking.greedy import compare_greedy
from spec_compile.runtime.api import load


def identity(folders: list[Path], max_new_tokens: int, num_threads: int | None) -> Figure:
    """Decode the built-in prompts greedily, one by one and in batches."""
    rows: list[list[Cell]] = []
    data = {}
    for folder in folders:
        decoder = load(folder, num_threads=num_threads)
        prompts = bench_prompts(decoder, None, 0)
        found = compare_greedy(decoder, prompts, max_new_tokens)
        data[str(folder)] = asdict(found)
        counts = (found.prompts, found.tokens, len(found.mismatches), len(found.near_ties))
        rows.append([folder.name, *counts])
    columns = ["bundle", "prompts", "tokens compared", "mismatches", "near ties (margin < 1e-4)"]
    title = (
        f"Greedy tokens against target-only decoding, {max_new_tokens} tokens a prompt, each "
        "prompt alone and in a batch"
    )
    return Figure(title, columns, rows, data, num_threads)
