"""What acceptance and sampling cost inside the verify call, and how far it is from the memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.figures.bandwidth import read_bandwidth
from benchmarks.figures.cut_tail import cut_tail
from benchmarks.figures.graph_calls import (
    Arrays,
    GraphCall,
    time_side_by_side,
    verify_arrays,
    verify_outputs,
)
from benchmarks.figures.report import Cell, Figure, percentiles
from spec_compile.benchmarking.machine import usable_cores
from spec_compile.checking.contexts import long_context
from spec_compile.runtime.api import Decoder, load
from spec_compile.runtime.onnx_file import read_onnx

# temperature, top_k, top_p, min_p
SETTINGS: dict[str, tuple[float, int, float, float]] = {
    "greedy (temperature 0)": (0.0, 0, 1.0, 0.0),
    "temperature 1": (1.0, 0, 1.0, 0.0),
    "temperature 0.7": (0.7, 0, 1.0, 0.0),
    "top-k 50": (1.0, 50, 1.0, 0.0),
    "top-p 0.9": (1.0, 0, 0.9, 0.0),
    "min-p 0.05": (1.0, 0, 1.0, 0.05),
    "top-k 50, top-p 0.9, min-p 0.05": (1.0, 50, 0.9, 0.05),
}
_CUT = "no tail (cut at the logits)"


def verify_cost(folder: Path, valid: int, repeat: int, num_threads: int | None) -> Figure:
    """Time one verify call, the same graph cut at its logits, and every sampling option.

    Args:
        folder: a bundle of fusion `verify`.
        valid: cache entries in use.
        repeat: calls of each kind.
        num_threads: threads of one call.
    """
    decoder = load(folder, num_threads=num_threads)
    arrays = verify_arrays(decoder, long_context(decoder, valid + 1, 0), num_threads)
    graph = decoder.manifest.graphs["verify"]
    path = decoder.bundle.path(graph.file)
    whole = GraphCall(path, path.parent, num_threads)
    calls = {_CUT: call_without_tail(decoder, arrays, num_threads)}
    for name, options in SETTINGS.items():
        given = arrays | _sampling(arrays, options)
        calls[name] = whole.bind(given, verify_outputs(decoder, given))
    measured = time_side_by_side(calls, repeat)
    weights = _weight_bytes(path)
    bandwidth = read_bandwidth(num_threads or usable_cores())
    bound = 1000.0 * weights / bandwidth
    base = percentiles(measured[_CUT])[1]
    rows: list[list[Cell]] = [
        [name, *(f"{ms:.2f}" for ms in percentiles(times)), percentiles(times)[1] / base]
        for name, times in measured.items()
    ]
    rows.append(["bandwidth bound", "", f"{bound:.2f}", "", bound / base])
    slots = graph.caches[0].shape[2]
    k = decoder.manifest.config.num_speculative_tokens
    title = (
        f"Verify call of {decoder.manifest.models['target'].source}, one row, k = {k}, "
        f"{valid} valid entries, S = {slots}; medians of {repeat}; bound: {weights / 1e6:.0f} MB "
        f"of weights at {bandwidth / 1e9:.1f} GB/s"
    )
    data = {
        "milliseconds": measured,
        "weight_bytes": weights,
        "bytes_per_second": bandwidth,
        "slots": slots,
        "valid": valid,
    }
    columns = ["call", "p10 ms", "median ms", "p90 ms", "x of no tail"]
    return Figure(title, columns, rows, data, num_threads)


def call_without_tail(
    decoder: Decoder, arrays: Arrays, num_threads: int | None
) -> Callable[[], None]:
    """The verify graph up to its logits, bound to the same caches."""
    graph = decoder.manifest.graphs["verify"]
    path = decoder.bundle.path(graph.file)
    caches = {t.name: t.alias_of for t in graph.outputs if t.alias_of is not None}
    model, logits, written = cut_tail(path, decoder.manifest.vocab_size, caches)
    config = decoder.manifest.config
    rows = config.num_drafts * config.num_speculative_tokens + 1
    outputs = {output: arrays[cache] for cache, output in written.items()}
    outputs[logits] = np.zeros((rows, decoder.manifest.vocab_size), dtype=np.float32)
    return GraphCall(model, path.parent, num_threads).bind(arrays, outputs)


def _sampling(arrays: Arrays, options: tuple[float, int, float, float]) -> Arrays:
    names = ("temperature", "top_k", "top_p", "min_p")
    return {
        name: np.array([value], dtype=arrays[name].dtype)
        for name, value in zip(names, options, strict=True)
    }


def _weight_bytes(path: Path) -> int:
    return sum((path.parent / name).stat().st_size for name in read_onnx(path).external_files)
