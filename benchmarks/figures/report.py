"""What a measurement hands back: a table for people, all numbers for machines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spec_compile.benchmarking.machine import describe_machine, versions

Cell = str | int | float
_LOAD_AT_START = describe_machine(None)["load_average"]  # later, the measurement itself is in it


@dataclass(frozen=True)
class Figure:
    """One table of figures.

    Args:
        title: what was measured, in one line.
        columns: headings.
        rows: cells; a float is shown with three significant digits.
        data: every number behind the table.
        num_threads: threads of one graph call; None is the engine's choice.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    data: dict[str, Any]
    num_threads: int | None = None
    machine: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        machine = {**describe_machine(self.num_threads), "load_average": _LOAD_AT_START}
        object.__setattr__(self, "machine", machine)

    def to_json(self) -> str:
        """One JSON object."""
        named = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        report = {"title": self.title, "rows": named, "data": self.data}
        return json.dumps({**report, "machine": self.machine, "versions": versions()}, indent=1)

    def to_markdown(self) -> str:
        """The table to paste, and a line on where it was measured."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"**{self.title}**"
        yield ""
        yield _line(self.columns)
        yield _line(["---"] * len(self.columns))
        for row in self.rows:
            yield _line([_text(cell) for cell in row])
        machine = self.machine
        load = machine["load_average"]
        yield ""
        yield (
            f"{machine['cpu']}, {machine['usable_cores']} cores, threads: {machine['num_threads']}"
            f", load average at start {'unknown' if load is None else f'{load:.1f}'}; "
            + ", ".join(f"{name} {version}" for name, version in versions().items())
        )


def percentiles(milliseconds: Sequence[float]) -> tuple[float, float, float]:
    """10th, 50th and 90th percentile."""
    low, middle, high = np.percentile(milliseconds, [10, 50, 90])
    return float(low), float(middle), float(high)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(cell: Cell) -> str:
    if isinstance(cell, float):
        return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else cell
