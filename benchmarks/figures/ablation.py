"""Variants of one target: with some passes and lowerings and without others, ready to be timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from benchmarks.figures.graph_calls import Arrays, GraphCall, time_side_by_side
from spec_compile.acceptance import RULES
from spec_compile.config import SpecConfig
from spec_compile.export.backend import BuildContext
from spec_compile.export.capture import capture
from spec_compile.export.checkpoint import load_model, open_checkpoint
from spec_compile.export.cpu.pipeline import build_lowerings, lower_for_cpu
from spec_compile.export.onnx_model import translate_program
from spec_compile.export.onnxruntime import write_models
from spec_compile.export.weight_names import name_weights_of
from spec_compile.passes.drop_dead_code import DropDeadCode
from spec_compile.passes.fuse_acceptance import FuseAcceptance
from spec_compile.passes.manager import PassManager
from spec_compile.passes.merge_duplicates import MergeDuplicates
from spec_compile.passes.pack_projections import PackProjections
from spec_compile.passes.prune_logits import PruneLogits
from spec_compile.passes.remove_no_ops import RemoveNoOps
from spec_compile.program import Graph, Program, TensorSpec

K = 4
PACK = PackProjections.name
EDITS = (PACK, *(each.name for each in build_lowerings()))


@dataclass(frozen=True)
class Case:
    """One call.

    Args:
        name: what the table calls it.
        graph: `verify` (k = 4) or `target`.
        slots: S.
        lengths: valid entries of each row.
    """

    name: str
    graph: str
    slots: int
    lengths: tuple[int, ...]


CASES = (
    Case("verify, S = 512, 128 valid", "verify", 512, (128,)),
    Case("verify, S = 512, rows of 128, 40, 90, 10", "verify", 512, (128, 40, 90, 10)),
    Case("one token, S = 512, 128 valid", "target", 512, (128,)),
    Case("verify, S = 8,192, 128 valid", "verify", 8192, (128,)),
)


class Variants:
    """A target captured for `slots` cache entries, built with any choice of EDITS in `folder`."""

    def __init__(self, target: str, slots: int, folder: Path) -> None:
        self.folder, self.max_length = folder, slots - K
        self.config = SpecConfig(num_speculative_tokens=K, max_length=self.max_length)
        model = load_model(open_checkpoint(target), torch.float32)
        graph = capture(
            model, max_length=self.max_length, slots=slots, batch_size=self.config.batch_size
        )
        captured = Program({"target": graph}, name_weights_of({"target": model}))
        self.programs = {packed: self._compose(captured, packed) for packed in (False, True)}
        self.models = {
            packed: translate_program(program, self._context(program))
            for packed, program in self.programs.items()
        }
        self._written: dict[tuple[str, ...], Path] = {}

    def inputs(self, graph: str) -> tuple[TensorSpec, ...]:
        """The tensor table of a graph."""
        return self._graph(graph).inputs

    def outputs(self, graph: str) -> tuple[TensorSpec, ...]:
        """The tensor table of a graph's outputs."""
        return self._graph(graph).outputs

    def file(self, graph: str, edits: Sequence[str]) -> Path:
        """`graph` built with `edits` alone."""
        key = tuple(each for each in EDITS if each in edits)
        if key not in self._written:
            self._written[key] = self._write(key)
        return self._written[key] / f"{graph}.onnx"

    def _graph(self, name: str) -> Graph:
        return self.programs[True].graphs[name]

    def _compose(self, captured: Program, packed: bool) -> Program:
        fuse = FuseAcceptance(
            self.config, RULES["rejection"], self._vocab_size(captured), self.max_length
        )
        passes = [fuse, RemoveNoOps(), MergeDuplicates(), PruneLogits(), DropDeadCode()]
        return PassManager([PackProjections(), *passes] if packed else passes).run(captured)

    def _vocab_size(self, captured: Program) -> int:
        outputs = captured.graphs["target"].outputs
        return next(int(spec.shape[-1]) for spec in outputs if spec.name == "logits")

    def _context(self, program: Program) -> BuildContext:
        probs = next(s for s in program.graphs["verify"].inputs if s.name == "draft_probs")
        return BuildContext(
            int(probs.shape[-1]),
            program.weight_names,
            self.max_length,
            self.config.batch_size,
            self.config.num_speculative_tokens,
        )

    def _write(self, edits: tuple[str, ...]) -> Path:
        packed = PACK in edits
        models = {name: _copy(model) for name, model in self.models[packed].items()}
        chosen = [each for each in build_lowerings() if each.name in edits]
        lower_for_cpu(models, self._context(self.programs[packed]), chosen)
        folder = self.folder / ("-".join(edits) or "none")
        folder.mkdir(parents=True)
        write_models(models, folder)
        return folder


def measure(
    variants: Variants, case: Case, edit: str, repeat: int, num_threads: int | None
) -> dict[str, list[float]]:
    """Milliseconds of the call without any of EDITS, with `edit`, with all but it, with all."""
    choices: dict[str, Sequence[str]] = {
        "none": (),
        "alone": (edit,),
        "without": [each for each in EDITS if each != edit],
        "all": EDITS,
    }
    calls = {
        name: _call(variants, case, variants.file(case.graph, edits), num_threads)
        for name, edits in choices.items()
    }
    return time_side_by_side(calls, repeat)


def _copy(model: ir.Model) -> ir.Model:
    copied = model.clone()
    for name, value in copied.graph.initializers.items():
        value.const_value = model.graph.initializers[name].const_value
    return copied


def _call(
    variants: Variants, case: Case, path: Path, num_threads: int | None
) -> Callable[[], None]:
    generator = np.random.default_rng(0)
    arrays: Arrays = {}
    for spec in variants.inputs(case.graph):
        arrays[spec.name] = _value(spec, case, generator)
    outputs: Arrays = {}
    for spec in variants.outputs(case.graph):
        if spec.alias_of is not None:
            outputs[spec.name] = arrays[spec.alias_of]
        else:
            outputs[spec.name] = np.zeros(_sizes(spec, case), dtype=_dtype(spec))
    return GraphCall(path, path.parent, num_threads).bind(arrays, outputs)


def _value(spec: TensorSpec, case: Case, generator: np.random.Generator) -> NDArray[Any]:
    sizes, dtype = _sizes(spec, case), _dtype(spec)
    if spec.name == "lengths":
        return np.array(case.lengths, dtype=dtype)
    if spec.name in ("num_new", "temperature", "top_p"):
        return np.ones(sizes, dtype=dtype)
    if spec.name == "draft_probs":
        return np.full(sizes, 1.0 / sizes[-1], dtype=dtype)
    if spec.name in ("tokens", "draft_tokens"):
        return generator.integers(1, 1000, sizes, dtype=dtype)
    if spec.name == "uniforms":
        return generator.random(sizes, dtype=np.float32)
    return np.zeros(sizes, dtype=dtype)


def _sizes(spec: TensorSpec, case: Case) -> list[int]:
    free = {"B": len(case.lengths), "T": 1}
    return [size if isinstance(size, int) else free[size] for size in spec.shape]


def _dtype(spec: TensorSpec) -> str:
    return str(spec.dtype).removeprefix("torch.")
