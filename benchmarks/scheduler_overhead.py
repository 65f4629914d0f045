"""What continuous batching costs beside the engine: milliseconds per step, rows busy.

    python benchmarks/scheduler_overhead.py BUNDLE [--rows 8] [--text]

The engine's own calls are timed from inside and taken off, so the figure does not depend on the
models' size. The time of the thread on its core is shown beside the time by the clock, which other
processes lengthen. With --text the bundle's tokenizer decodes every token, as a stream needs it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_compile.runtime.api import load
from spec_compile.runtime.engine import Engine, Run
from spec_compile.runtime.lane import Lane
from spec_compile.runtime.requests import GenerationOptions
from spec_compile.runtime.scheduler import PREFILL_CHUNK
from spec_compile.runtime.ticket import SharedRow, Ticket

_WARM_UP = 5


class TimedEngine:
    """An engine that adds up the seconds of its runs, by the clock and on the core."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.spent = engine, [0.0, 0.0]

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        """See `Engine.zeros`."""
        return self._engine.zeros(shape, dtype)

    def bind(self, graph: str, buffers: Mapping[str, Any]) -> Run:
        """See `Engine.bind`."""
        run = self._engine.bind(graph, buffers)

        def timed() -> None:
            clock, core = time.perf_counter(), time.thread_time()
            run()
            self.spent[0] += time.perf_counter() - clock
            self.spent[1] += time.thread_time() - core

        return timed


def overhead(bundle: str, rows: int, *, with_text: bool) -> NDArray[np.float64]:
    """Milliseconds of each step beyond the engine's, by the clock and on the core: [steps, 2]."""
    decoder = load(bundle, num_threads=1)
    engine = TimedEngine(decoder.engine)
    lane = Lane(engine, decoder.manifest, rows, PREFILL_CHUNK)
    room = decoder.manifest.config.max_length - 4
    for seed in range(rows):
        options = GenerationOptions(max_new_tokens=room, temperature=0.8, ignore_eos=True)
        row = SharedRow(
            budget=room,
            budget_reason="length",
            eos_token_ids=(),
            stops=(),
            tokenizer=decoder.tokenizer if with_text else None,
            num_speculative_tokens=decoder.manifest.config.num_speculative_tokens,
        )
        lane.enter(Ticket(row, [1, 2, 3, 4], options, seed))
    beyond = []
    while len(lane.tickets) == rows:
        engine.spent = [0.0, 0.0]
        clock, core = time.perf_counter(), time.thread_time()
        for ticket in lane.step():
            ticket.settle()
            ticket.publish()
        taken = time.perf_counter() - clock, time.thread_time() - core
        beyond.append([1000.0 * (t - spent) for t, spent in zip(taken, engine.spent, strict=True)])
    return np.array(beyond[_WARM_UP:])


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--text", action="store_true")
    args = parser.parse_args()
    steps = overhead(args.bundle, args.rows, with_text=args.text)
    clock, core = (
        f"median {np.median(column):.3f} ms, least {column.min():.3f}, "
        f"99th percentile {np.percentile(column, 99):.3f}"
        for column in steps.T
    )
    print(f"{args.rows} rows, {len(steps)} steps, beside the engine: {clock}; on its core: {core}")


if __name__ == "__main__":
    main()
