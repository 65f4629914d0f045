"""Peak memory of the runtime over weights and caches, and the seconds until it is ready."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import numpy as np

from benchmarks.figures.fresh_process import run_probe
from benchmarks.figures.report import Cell, Figure
from spec_compile.benchmarking.machine import usable_cores
from spec_compile.graph_contract import GRAPHS_OF_FUSION
from spec_compile.manifest import GraphSpec
from spec_compile.runtime.loader import Bundle, open_bundle
from spec_compile.runtime.onnx_file import read_onnx


def memory(folders: list[Path], repeat: int, num_threads: int | None) -> Figure:
    """Generate 64 tokens in a fresh process for each bundle, `repeat` times."""
    rows: list[list[Cell]] = []
    data = {}
    for folder in folders:
        bundle = open_bundle(folder, verify_hash=False)
        threads = num_threads or usable_cores()
        runs = [run_probe("memory", folder, threads)[0] for _ in range(repeat)]
        weights, caches = weight_bytes(bundle), cache_bytes(bundle)
        peak, imported, loading, opening = (
            statistics.median(run[name] for run in runs)
            for name in ("peak_bytes", "imported_bytes", "load_seconds", "open_seconds")
        )
        data[str(folder)] = {"runs": runs, "weight_bytes": weights, "cache_bytes": caches}
        megabytes = (f"{n / 1e6:.0f}" for n in (weights, caches, imported, peak))
        ratios = (peak / (weights + caches), (peak - imported) / (weights + caches))
        rows.append([folder.name, *megabytes, *ratios, loading, opening])
    columns = [
        "bundle",
        "weights MB",
        "caches MB",
        "imports MB",
        "peak MB",
        "peak / (weights + caches)",
        "less imports",
        "load s",
        "open s",
    ]
    title = f"Memory and loading, one row, medians of {repeat} fresh processes"
    return Figure(title, columns, rows, data, num_threads)


def weight_bytes(bundle: Bundle) -> int:
    """Size of the weight files that speculative decoding opens, each counted once."""
    paths = [bundle.path(graph.file) for graph in _fused_graphs(bundle)]
    files = {path.parent / name for path in paths for name in read_onnx(path).external_files}
    return sum(file.stat().st_size for file in files)


def cache_bytes(bundle: Bundle) -> int:
    """Size of one row's caches in speculative decoding."""
    return sum(
        math.prod(size for size in tensor.shape if isinstance(size, int))
        * np.dtype(tensor.dtype).itemsize
        for graph in _fused_graphs(bundle)
        for tensor in graph.caches
    )


def _fused_graphs(bundle: Bundle) -> list[GraphSpec]:
    graphs = bundle.manifest.graphs
    names = GRAPHS_OF_FUSION[bundle.manifest.config.fusion]
    return [graphs[name] for name in names if name != "target"]
