"""Seconds that an export takes, from the command's start to its end."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.figures.fresh_process import run_python
from benchmarks.figures.report import Cell, Figure
from spec_compile.config import FUSIONS


def export_time(target: str, draft: str, options: list[str], repeat: int) -> Figure:
    """Run `spec-compile export` of a pair in fresh processes, for each fusion.

    Args:
        target: preset, folder or hub id.
        draft: the same.
        options: further arguments of the command.
        repeat: exports of each fusion.
    """
    rows: list[list[Cell]] = []
    data: dict[str, list[dict[str, object]]] = {}
    for fusion in FUSIONS:
        data[fusion] = [
            _export(target, draft, [*options, "--fusion", fusion]) for _ in range(repeat)
        ]
        seconds = statistics.median(float(str(run["wall_seconds"])) for run in data[fusion])
        rows.append([fusion, seconds])
    names = " + ".join(Path(name).name for name in (target, draft))
    title = f"Export of {names}, {repeat} run(s) each, process start to end"
    return Figure(title, ["fusion", "seconds"], rows, dict(data))


def _export(target: str, draft: str, options: list[str]) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as scratch:
        output = str(Path(scratch) / "bundle")
        pair = ["--target", target, "--draft", draft, "--output", output, "--json"]
        started = time.perf_counter()
        written = run_python("-m", "spec_compile.cli", "export", *pair, *options)
        wall = time.perf_counter() - started
    report: dict[str, object] = json.loads(written.stdout)
    return {"wall_seconds": wall, "steps": report.get("steps")}
