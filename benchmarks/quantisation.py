"""What rounding weights costs and gives: the table of `docs/quantisation.md`.

    python benchmarks/quantisation.py FLOAT_BUNDLE BUNDLE... [--tokens N] [--rows N] [--json]

Every bundle is compared with the first one: perplexity on held-out text, how often both find the
same token likeliest, bytes of weights, and the median time of one verify call and of one plain
token, measured side by side in this process. The bundles are of fusion `verify`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.figures.graph_calls import (
    GraphCall,
    time_side_by_side,
    verify_arrays,
    verify_outputs,
    zeros,
)
from benchmarks.figures.report import Cell, Figure, percentiles
from benchmarks.figures.teacher_forced import Reading, read, windows
from spec_compile.checking.contexts import long_context
from spec_compile.runtime.api import Decoder, load

_COLUMNS = (
    "target, draft",
    "perplexity",
    "agreement",
    "target MB",
    "draft MB",
    "verify call ms",
    "one token ms",
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE")
    parser.add_argument("--tokens", type=int, default=20_000, help="of text (default %(default)s)")
    parser.add_argument("--rows", type=int, default=16, help="side by side (default %(default)s)")
    parser.add_argument("--repeat", type=int, default=200, help="timed calls (default %(default)s)")
    parser.add_argument("--valid", type=int, default=128, help="cache entries in use")
    parser.add_argument("--num-threads", type=int, help="threads of one graph call")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    figure = measure(arguments)
    print(figure.to_json() if arguments.json else figure.to_markdown())


def measure(arguments: argparse.Namespace) -> Figure:
    """All figures of all bundles."""
    threads = arguments.num_threads
    decoders = [load(folder, num_threads=threads) for folder in arguments.bundles]
    ids = windows(decoders[0], arguments.tokens)
    readings = [read(decoder, ids, arguments.rows, threads) for decoder in decoders]
    calls: dict[str, Callable[[], None]] = {}
    for number, decoder in enumerate(decoders):
        context = long_context(decoder, arguments.valid + 1, 0)
        calls[f"verify {number}"] = _verify_call(decoder, context, threads)
        calls[f"token {number}"] = _token_call(decoder, context, threads)
    measured = time_side_by_side(calls, arguments.repeat)
    rows: list[list[Cell]] = []
    for number, (decoder, reading) in enumerate(zip(decoders, readings, strict=True)):
        times = [percentiles(measured[f"{kind} {number}"])[1] for kind in ("verify", "token")]
        rows.append(_row(decoder, reading, readings[0], times))
    manifest = decoders[0].manifest
    config, slots = manifest.config, manifest.graphs["target"].caches[0].shape[2]
    title = (
        f"{manifest.models['target'].source}: {ids.size} tokens of text, {len(ids)} "
        f"windows; calls of one row, k = {config.num_speculative_tokens}, {arguments.valid} valid "
        f"entries, S = {slots}, medians of {arguments.repeat}"
    )
    return Figure(title, _COLUMNS, rows, {"milliseconds": measured}, threads)


def _row(
    decoder: Decoder, reading: Reading, reference: Reading, times: Sequence[float]
) -> list[Cell]:
    manifest = decoder.manifest
    config = manifest.config
    sizes = [manifest.files[f"{owner}.weights"].size / 1e6 for owner in ("target", "draft")]
    return [
        f"{config.quantize or config.dtype}, {config.quantize_draft or config.dtype}",
        f"{reading.perplexity:.3f}",
        f"{reading.agreement(reference):.4f}",
        *(f"{size:.1f}" for size in sizes),
        *(f"{time:.2f}" for time in times),
    ]


def _verify_call(
    decoder: Decoder, context: Sequence[int], num_threads: int | None
) -> Callable[[], None]:
    """One verify call in the middle of a generation."""
    arrays = verify_arrays(decoder, context, num_threads)
    path = decoder.bundle.path(decoder.manifest.graphs["verify"].file)
    outputs = verify_outputs(decoder, arrays)
    return GraphCall(path, path.parent, num_threads).bind(arrays, outputs)


def _token_call(
    decoder: Decoder, context: Sequence[int], num_threads: int | None
) -> Callable[[], None]:
    """One call of the target alone, at the same place."""
    graph = decoder.manifest.graphs["target"]
    path = decoder.bundle.path(graph.file)
    call = GraphCall(path, path.parent, num_threads)
    arrays = zeros(graph.inputs, len(context) - 1)
    outputs = zeros([tensor for tensor in graph.outputs if tensor.alias_of is None], 1)
    outputs |= {t.name: arrays[t.alias_of] for t in graph.outputs if t.alias_of is not None}
    arrays["tokens"][0], arrays["num_new"][0] = context[:-1], len(context) - 1
    call.bind(arrays, outputs)()
    now = {
        "tokens": np.array([[context[-1]]], dtype=np.int64),
        "num_new": np.array([1], dtype=np.int64),
        "lengths": np.array([len(context) - 1], dtype=np.int64),
    }
    return call.bind(arrays | now, outputs)


if __name__ == "__main__":
    main()
