"""Runs passes in their declared order, with instruments around each."""

from __future__ import annotations

import time
from collections.abc import Sequence

from spec_compile.errors import PassError
from spec_compile.passes.base import Pass
from spec_compile.passes.instruments import Instrument
from spec_compile.program import Program


class PassManager:
    """A list of passes whose `after` constraints hold.

    Args:
        passes: in the order to run.
        instruments: told before and after each pass.

    Raises:
        PassError: the order breaks constraints; the message lists every one.
    """

    def __init__(self, passes: Sequence[Pass], instruments: Sequence[Instrument] = ()) -> None:
        breaches = order_breaches(passes)
        if breaches:
            raise PassError("the pipeline breaks its order: " + "; ".join(breaches))
        self.passes = tuple(passes)
        self.instruments = tuple(instruments)

    def run(self, program: Program) -> Program:
        """The program after every pass.

        Raises:
            PassError: a pass failed; the message names it and those that ran before.
        """
        done: list[str] = []
        for instrument in self.instruments:
            instrument.start(program)
        for each in self.passes:
            try:
                program = self._run_one(each, program)
            except PassError as error:
                before = f" (after {', '.join(done)})" if done else ""
                raise type(error)(f"{error}{before}") from error
            done.append(each.name)
        return program

    def _run_one(self, each: Pass, program: Program) -> Program:
        for instrument in self.instruments:
            instrument.before(each, program)
        start = time.perf_counter()
        result = each(program)
        seconds = time.perf_counter() - start
        for instrument in self.instruments:
            instrument.after(each, program, result, seconds)
        return result.program


def order_breaches(passes: Sequence[Pass]) -> list[str]:
    """Every pair of passes that stands in the wrong order, in words."""
    kinds = [type(each) for each in passes]
    return [
        f"{each.name} has to come after {earlier.name}"
        for index, each in enumerate(passes)
        for earlier in each.after
        if earlier in kinds[index + 1 :]
    ]
