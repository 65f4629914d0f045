"""What each pass and lowering is worth: the same call with and without it, side by side.

    python benchmarks/ablation.py TARGET [--repeat N] [--num-threads N] [--json]

Two questions are asked of each: what it gains alone, over a graph without any of them, and what
the finished graph loses without it. Prints a Markdown table, or with --json every number behind it.
Needs the memory of four copies of the target.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.figures.ablation import CASES, EDITS, Variants, measure
from benchmarks.figures.report import Cell, Figure, percentiles


def main() -> None:
    """Measure every case and print one table."""
    arguments = _arguments()
    rows: list[list[Cell]] = []
    data: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for slots in sorted({case.slots for case in CASES}):
            variants = Variants(arguments.target, slots, Path(scratch) / str(slots))
            for case in (case for case in CASES if case.slots == slots):
                for edit in EDITS:
                    times = measure(variants, case, edit, arguments.repeat, arguments.num_threads)
                    medians = {name: percentiles(found)[1] for name, found in times.items()}
                    rows.append([case.name, edit, *_cells(medians)])
                    data[f"{case.name}: {edit}"] = times
    columns = [
        "call",
        "pass or lowering",
        "none",
        "it alone",
        "ratio",
        "all but it",
        "all",
        "ratio",
    ]
    title = (
        f"Medians of {arguments.repeat} calls of {Path(arguments.target).name} in milliseconds, "
        "float32, alternating in one process"
    )
    figure = Figure(title, columns, rows, data, arguments.num_threads)
    print(figure.to_json() if arguments.json else figure.to_markdown())


def _cells(medians: dict[str, float]) -> list[Cell]:
    none, alone, without, everything = (
        medians[name] for name in ("none", "alone", "without", "all")
    )
    return [
        *(f"{none:.2f}", f"{alone:.2f}", alone / none),
        *(f"{without:.2f}", f"{everything:.2f}", everything / without),
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", help="preset, folder or hub id")
    parser.add_argument("--repeat", type=int, default=60, help="calls of each (default 60)")
    parser.add_argument("--num-threads", type=int, help="threads of one call")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
