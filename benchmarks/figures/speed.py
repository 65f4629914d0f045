"""Tokens per second of bundles and of their targets alone, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.figures.report import Cell, Figure
from spec_compile.bench import BenchOptions, bench_bundles


def speed(
    folders: list[Path],
    temperatures: list[float],
    repeat: int,
    max_new_tokens: int,
    num_threads: int | None,
) -> Figure:
    """Run `bench` at each temperature, all bundles interleaved."""
    rows: list[list[Cell]] = []
    data = {}
    for temperature in temperatures:
        options = BenchOptions(
            temperatures=(temperature,),
            memory=False,
            repeat=repeat,
            max_new_tokens=max_new_tokens,
            num_threads=num_threads,
        )
        report = bench_bundles(folders, options)
        data[f"temperature {temperature:g}"] = report
        rows += [_row(temperature, one) for one in report["results"]]
    columns = [
        "temperature",
        "bundle",
        "mode",
        "tokens/s",
        "speed-up",
        "TTFT ms",
        "TPOT ms",
        "p90",
        "p99",
        "block efficiency",
        "acceptance",
    ]
    title = f"20 prompts x {max_new_tokens} tokens, medians of {repeat} interleaved passes"
    return Figure(title, columns, rows, data, num_threads)


def _row(temperature: float, one: dict[str, Any]) -> list[Cell]:
    tpot = one["tpot_ms"]
    return [
        f"{temperature:g}",
        Path(one["bundle"]).name,
        one["mode"],
        f"{one['tokens_per_second']:.1f}",
        f"{one['speed_up']:.2f}x",
        *(f"{ms:.2f}" for ms in (one["ttft_ms"], tpot["median"], tpot["p90"], tpot["p99"])),
        f"{one['block_efficiency']:.2f}",
        f"{one['acceptance_rate']:.2f}",
    ]
