"""The steps of a compile: a bar on a terminal, log lines with -v, nothing on a pipe."""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Self

from spec_compile.commands.progress import ProgressBar

_LOG = logging.getLogger(__name__)


class CompileSteps:
    """Called with the name of each step as it begins; leaving the context ends the last one.

    Warnings of libraries, which say nothing to our user, are kept away unless -v is given.

    Args:
        names: every step to come, in order.
        args: the parsed arguments, for `quiet` and `verbose`.

    Attributes:
        finished: name and wall time in seconds of each step that has ended.
    """

    def __init__(self, names: Sequence[str], args: argparse.Namespace) -> None:
        self.finished: list[tuple[str, float]] = []
        self._names = tuple(names)
        self._verbose = args.verbose > args.quiet
        self._bar = ProgressBar(quiet=self._verbose or args.quiet > 0)
        self._stack = ExitStack()
        self._current: tuple[str, float] | None = None

    def __enter__(self) -> Self:
        self._stack.enter_context(self._bar)
        self._stack.enter_context(warnings.catch_warnings())
        if not self._verbose:
            warnings.simplefilter("ignore")
        return self

    def __call__(self, name: str) -> None:
        """Begin the step `name`."""
        self._finish()
        self._current = (name, time.perf_counter())
        _LOG.info("%s", name)
        self._bar(name, len(self.finished), len(self._names))

    def __exit__(self, *_: object) -> None:
        self._finish()
        self._stack.close()

    def _finish(self) -> None:
        if self._current is not None:
            name, start = self._current
            self.finished.append((name, time.perf_counter() - start))
            self._current = None
