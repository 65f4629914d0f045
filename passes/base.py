"""What a pass is: a contract that is enforced in one place, `Pass.__call__`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

from spec_compile.errors import PassError, PostconditionError, PreconditionError, SpecCompileError
from spec_compile.program import Program, first_line


@dataclass(frozen=True)
class Mismatch:
    """Why a pattern did not apply: a reason for people and the node where the match ended."""

    reason: str
    node: str


@dataclass(frozen=True)
class PassResult:
    """What a pass made.

    Args:
        program: the result; the pass leaves its input as it was.
        rewrites: how many times the pass changed something.
        mismatches: near misses, for `spec-compile passes --explain`.
    """

    program: Program
    rewrites: int
    mismatches: tuple[Mismatch, ...] = ()

    @property
    def modified(self) -> bool:
        """Whether the program differs from the one that went in."""
        return self.rewrites > 0


class Pass(ABC):
    """One unit of change. Subclasses implement `call`, and `requires` and `ensures` where it helps.

    Class attributes:
        name: what people and dumps call it.
        after: passes that have to stand earlier in a pipeline that holds them.
    """

    name: ClassVar[str]
    after: ClassVar[tuple[type[Pass], ...]] = ()

    def requires(self, program: Program) -> None:
        """Raise PreconditionError when the pass cannot take `program`."""

    @abstractmethod
    def call(self, program: Program) -> PassResult:
        """Make the new program."""

    def ensures(self, program: Program) -> None:
        """Raise PostconditionError when `program`, the result, breaks the pass's promise."""

    @final
    def __call__(self, program: Program) -> PassResult:
        """Run the pass with its checks.

        Raises:
            PassError: a check failed, or the pass itself; the message names the pass.
        """
        self.requires(program)
        try:
            result = self.call(program)
        except SpecCompileError:
            raise
        except Exception as error:
            raise PassError(f"pass {self.name} failed: {first_line(error)}") from error
        if not isinstance(result, PassResult):
            raise PassError(f"pass {self.name} returned {type(result).__name__}, not a PassResult")
        self.ensures(result.program)
        return result

    def need(self, program: Program, *graphs: str) -> None:
        """Raise PreconditionError unless `program` holds every one of `graphs`."""
        missing = [graph for graph in graphs if graph not in program.graphs]
        if missing:
            raise PreconditionError(f"pass {self.name} needs the graph {', '.join(missing)}")

    def promise(self, program: Program, *graphs: str) -> None:
        """Raise PostconditionError unless the result holds every one of `graphs`."""
        missing = [graph for graph in graphs if graph not in program.graphs]
        if missing:
            raise PostconditionError(
                f"pass {self.name} did not make the graph {', '.join(missing)}"
            )
