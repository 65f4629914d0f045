"""An engine that stops at a gate, fails on demand and notes what it is asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from spec_compile.errors import BackendError
from spec_compile.runtime.engine import Engine, Run


class GatedEngine:
    """Wraps an engine; every run passes a gate, which is open at first.

    Attributes:
        on_call: called before each run that passed.
        fails_at: a run that feeds a row of this temperature fails; None none.
        rows: B of each run.
        widths: T of each run.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._gate, self._waiting = threading.Event(), threading.Event()
        self._gate.set()
        self.on_call: Callable[[], object] = lambda: None
        self.fails_at: float | None = None
        self.rows: list[int] = []
        self.widths: list[int] = []

    def open(self) -> None:
        """Let all runs pass."""
        self._gate.set()

    def close(self) -> None:
        """Let the next run wait."""
        self._waiting.clear()
        self._gate.clear()

    def wait_for_call(self) -> None:
        """Return when a run waits at the gate."""
        assert self._waiting.wait(20)

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        return self._engine.zeros(shape, dtype)

    def bind(self, graph: str, buffers: Mapping[str, Any]) -> Run:
        run, tokens = self._engine.bind(graph, buffers), buffers["tokens"]
        num_new, temperature = buffers["num_new"], buffers["temperature"]

        def gated() -> None:
            self._waiting.set()
            assert self._gate.wait(20)
            self.on_call()
            self.rows.append(tokens.shape[0])
            self.widths.append(tokens.shape[1])
            if self.fails_at in temperature[num_new > 0]:
                raise BackendError(f"no run at {self.fails_at}")
            run()

        return gated
