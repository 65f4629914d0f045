"""Tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_TEXT_COLUMNS = 2


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows in aligned columns: two of text to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (
            cell.ljust(width) if column < _TEXT_COLUMNS else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
