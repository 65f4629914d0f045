"""An engine that takes down how long each graph call took, and changes nothing else."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from spec_compile.runtime.engine import Engine, Run


class Call(NamedTuple):
    """One call of a graph: its name, and wall time in milliseconds."""

    graph: str
    milliseconds: float


class TimedEngine:
    """`engine`, with a list of the calls made; see `Engine` for the methods.

    Args:
        engine: does the work.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._calls: list[Call] = []

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        """See `Engine.zeros`."""
        return self._engine.zeros(shape, dtype)

    def bind(self, graph: str, buffers: Mapping[str, Any]) -> Run:
        """See `Engine.bind`."""
        run = self._engine.bind(graph, buffers)

        def timed() -> None:
            started = time.perf_counter()
            run()
            self._calls.append(Call(graph, 1000.0 * (time.perf_counter() - started)))

        return timed

    def take(self) -> list[Call]:
        """The calls since the last `take`, in order."""
        calls, self._calls = self._calls, []
        return calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def split_first(calls: list[Call]) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Milliseconds of one generation's calls: each graph's first, which reads the prompt; the rest.

    Returns:
        By graph: the first call, and the later ones.
    """
    first: dict[str, float] = {}
    later: dict[str, list[float]] = {}
    for graph, milliseconds in calls:
        if graph in first:
            later.setdefault(graph, []).append(milliseconds)
        else:
            first[graph] = milliseconds
    return first, later
