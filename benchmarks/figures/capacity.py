"""Proof that caches are updated in place: no copy is reported, and capacity does not cost time."""

from __future__ import annotations

from pathlib import Path

from benchmarks.figures.fresh_process import run_probe
from benchmarks.figures.graph_calls import (
    GraphCall,
    time_side_by_side,
    verify_arrays,
    verify_outputs,
)
from benchmarks.figures.report import Figure, percentiles
from spec_compile.benchmarking.machine import usable_cores
from spec_compile.checking.contexts import long_context
from spec_compile.runtime.api import load

_WARNING = "in-place optimization not activated"


def capacity(folders: list[Path], valid: int, repeat: int, num_threads: int | None) -> Figure:
    """Time the verify call of bundles that differ in `max_length`, over the same valid entries.

    Args:
        folders: bundles of fusion `verify`.
        valid: cache entries in use.
        repeat: calls of each.
        num_threads: threads of one call.
    """
    calls, slots, copies = {}, {}, {}
    for folder in folders:
        decoder = load(folder, num_threads=num_threads)
        arrays = verify_arrays(decoder, long_context(decoder, valid + 1, 0), num_threads)
        graph = decoder.manifest.graphs["verify"]
        path = decoder.bundle.path(graph.file)
        call = GraphCall(path, path.parent, num_threads)
        calls[str(folder)] = call.bind(arrays, verify_outputs(decoder, arrays))
        slots[str(folder)] = graph.caches[0].shape[2]
        copies[str(folder)] = count_copies(folder, num_threads or usable_cores())
    measured = time_side_by_side(calls, repeat)
    base = percentiles(next(iter(measured.values())))[1]
    rows = [
        [
            slots[name],
            *(f"{ms:.2f}" for ms in percentiles(times)),
            percentiles(times)[1] / base,
            *copies[name],
        ]
        for name, times in measured.items()
    ]
    columns = ["S", "p10 ms", "median ms", "p90 ms", "x of first", "copies", "copies, control"]
    title = (
        f"Verify call over {valid} valid entries by cache slots S, one row; copies: cache copies "
        "that ONNX Runtime reports in a generation, and in one call bound out of place"
    )
    return Figure(title, columns, rows, {"milliseconds": measured, "copies": copies}, num_threads)


def count_copies(folder: Path, num_threads: int) -> tuple[int, int]:
    """Copies that ONNX Runtime warns of: in a generation, and in a call bound out of place."""
    ours = run_probe("in-place", folder, num_threads)[1]
    control = run_probe("not-in-place", folder, num_threads)[1]
    return ours.count(_WARNING), control.count(_WARNING)
