"""A progress bar on a terminal's stderr; nothing anywhere else."""

from __future__ import annotations

import shutil
import sys

_WIDTH = 24


class ProgressBar:
    """Shows `stage [####....] done/total` on one line, and removes it when left.

    Args:
        quiet: show nothing, also on a terminal.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._shown = not quiet and sys.stderr.isatty()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._write("")

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show that `done` of `total` steps of `stage` are over."""
        filled = _WIDTH * done // max(total, 1)
        self._write(f"{stage} [{'#' * filled:.<{_WIDTH}}] {done}/{total}")

    def _write(self, line: str) -> None:
        if self._shown:
            columns = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r{line[:columns]}\x1b[K")
            sys.stderr.flush()
