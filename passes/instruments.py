"""What watches passes from outside: timing, dumps, explanations, checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from spec_compile.errors import PassError
from spec_compile.passes.base import Mismatch, Pass, PassResult
from spec_compile.passes.verifier import verify
from spec_compile.program import Program

# First words of a dump: what begins otherwise is not ours to delete.
_CAPTURED, _AFTER = "as captured, before any pass", "after"
_HEADERS = (f"# {_CAPTURED}\n", f"# {_AFTER} ")


class Instrument:
    """Told about each pass; the default does nothing."""

    def start(self, program: Program) -> None:
        """Called once, with the program that goes into the first pass."""

    def before(self, each: Pass, program: Program) -> None:
        """Called before each pass."""

    def after(self, each: Pass, program: Program, result: PassResult, seconds: float) -> None:
        """Called after each pass with its input, its result and its wall time in seconds."""


@dataclass
class Timing(Instrument):
    """Keeps (pass, rewrites, seconds) for each pass that ran."""

    rows: list[tuple[str, int, float]] = field(default_factory=list)

    def after(self, each: Pass, program: Program, result: PassResult, seconds: float) -> None:
        self.rows.append((each.name, result.rewrites, seconds))


@dataclass
class Explain(Instrument):
    """Keeps the near misses of each pass."""

    mismatches: dict[str, tuple[Mismatch, ...]] = field(default_factory=dict)

    def after(self, each: Pass, program: Program, result: PassResult, seconds: float) -> None:
        self.mismatches[each.name] = result.mismatches


@dataclass
class Dump(Instrument):
    """Writes every program that a pass changed: `NN_<pass>.py`, beginning with `00_captured.py`."""

    folder: Path
    count: int = 0

    def start(self, program: Program) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.count = 0
        for old in self.folder.glob("[0-9][0-9]_*.py"):
            if old.read_text(encoding="utf-8", errors="replace").startswith(_HEADERS):
                old.unlink()
        self._write("captured", program, _CAPTURED)

    def after(self, each: Pass, program: Program, result: PassResult, seconds: float) -> None:
        if result.modified:
            note = f"{_AFTER} {each.name}: {result.rewrites} rewrites, {seconds * 1e3:.0f} ms"
            self._write(each.name, result.program, note)

    def _write(self, name: str, program: Program, note: str) -> None:
        parts = [f"# {note}\n"]
        for graph_name, graph in program.graphs.items():
            tensors = "\n".join(
                f"#   {direction} {spec.name}: {spec.dtype} {list(spec.shape)}"
                for direction, specs in (("in ", graph.inputs), ("out", graph.outputs))
                for spec in specs
            )
            parts.append(f"# graph {graph_name}\n{tensors}\n{graph.text()}")
        path = self.folder / f"{self.count:02d}_{name}.py"
        path.write_text("\n".join(parts), encoding="utf-8")
        self.count += 1


class Verify(Instrument):
    """Checks every result against the verifier and every `modified` against the structural hash."""

    def start(self, program: Program) -> None:
        verify(program)

    def after(self, each: Pass, program: Program, result: PassResult, seconds: float) -> None:
        verify(result.program)
        changed = program.structural_hash() != result.program.structural_hash()
        if changed != result.modified:
            said = f"{result.rewrites} rewrites"
            truth = "changed" if changed else "did not change"
            raise PassError(f"pass {each.name} reports {said} but {truth} the program")
