"""`Program`: the graphs of one compile, each an exported program with a table of its tensors."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from spec_compile.errors import CaptureError
from spec_compile.graph_call import collect_callees, renamed_outputs, splice_callees
from spec_compile.graph_contract import is_source_tensor

# Rows, new tokens, source tokens of the example inputs: unequal, and neither 0 nor 1, which torch
# specialises.
EXAMPLE_SIZES = {"B": 3, "T": 5, "N": 7}


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a graph.

    Args:
        name: what it is, see the graph contract in docs/architecture.md (`tokens`, `lengths`, ...).
        dtype: element type.
        shape: sizes; "B" (rows), "T" (new tokens), "N" (tokens of a source text) and "J" (draft
            tokens of a round) are symbolic, and so is "J+1".
        alias_of: for an updated cache, the input whose buffer it may overwrite.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int | str, ...]
    alias_of: str | None = None

    @property
    def is_cache(self) -> bool:
        """Whether this is a key or value cache, before or after its update."""
        return "_cache." in self.name

    @property
    def is_source(self) -> bool:
        """Whether this is what a decoder reads of its source text: see graph_contract.py."""
        return is_source_tensor(self.name)


@dataclass(frozen=True)
class Graph:
    """One exported program; `inputs` and `outputs` are in its calling order."""

    exported: ExportedProgram
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def input(self, name: str) -> TensorSpec:
        """The input called `name`; KeyError when there is none."""
        return {spec.name: spec for spec in self.inputs}[name]

    @property
    def nodes(self) -> Sequence[fx.Node]:
        """Nodes of the graph in execution order."""
        return list(self.exported.graph.nodes)

    def edited(self, rewrite: Callable[[fx.Graph], int]) -> tuple[Graph, int]:
        """A copy of this graph on which `rewrite` has run, and the count that it returned.

        The copy shares weights and node metadata; this graph stays as it is. `rewrite` may replace
        what feeds an output but not the number or order of outputs.
        """
        copied = fx.Graph()
        outputs = copied.graph_copy(self.exported.graph, {})
        copied.output(outputs)
        count = rewrite(copied)
        if count == 0:
            return self, 0
        copied.lint()
        module = fx.GraphModule(self.exported.graph_module, copied)
        signature = renamed_outputs(self.exported.graph_signature, copied)
        exported = self.exported._update(module, signature)
        return replace(self, exported=exported), count

    def text(self) -> str:
        """The graph as runnable-looking Python, for people and for hashing."""
        return str(self.exported.graph_module.code).strip() + "\n"


@dataclass(frozen=True)
class Program:
    """Everything one compile works on.

    Args:
        graphs: by name, in the order they were made.
        weight_names: `<owner>.<name in the checkpoint>` by the address of a weight's memory.
    """

    graphs: Mapping[str, Graph]
    weight_names: Mapping[int, str] = field(default_factory=dict)

    def with_graph(self, name: str, graph: Graph) -> Program:
        """A program in which `name` is `graph`."""
        return replace(self, graphs={**self.graphs, name: graph})

    def with_weight_names(self, names: Mapping[int, str]) -> Program:
        """A program whose weights are called `names`."""
        return replace(self, weight_names=names)

    def without(self, *names: str) -> Program:
        """A program that lacks the graphs called `names`."""
        kept = {name: graph for name, graph in self.graphs.items() if name not in names}
        return replace(self, graphs=kept)

    def structural_hash(self) -> str:
        """A digest of the code of every graph and of the tensor tables; weights do not count."""
        digest = hashlib.sha256()
        for name, graph in self.graphs.items():
            digest.update(f"{name}{graph.inputs}{graph.outputs}\n{graph.text()}".encode())
        return digest.hexdigest()


class Composite(nn.Module):
    """A module over named tensors: subclasses fill in `inputs` and `compute`."""

    inputs: tuple[TensorSpec, ...]

    def compute(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Outputs by name, in order, from inputs by name."""
        raise NotImplementedError

    def forward(self, *args: Tensor) -> tuple[Tensor, ...]:
        """The positional form that torch.export traces."""
        names = [spec.name for spec in self.inputs]
        self.output_tensors = self.compute(dict(zip(names, args, strict=True)))
        return tuple(self.output_tensors.values())


def updated_name(cache: str, write: int = 0) -> str:
    """The output that holds the input `cache` after write number `write` of a round."""
    return f"next_{cache}" if write == 0 else f"next{write}_{cache}"


def _updated_input(name: str, inputs: Set[str]) -> str | None:
    source = re.sub(r"^next\d*_", "", name)
    return source if source != name and source in inputs else None


def trace(
    module: Composite, *, batch_size: int, max_length: int, num_speculative_tokens: int = 2
) -> Graph:
    """Trace `module` with symbolic B, T, N (each 1 to its limit) and J (0..k, k at least 2).

    B ends at `batch_size`; T and N end at `max_length`.

    Raises:
        CaptureError: the module's control flow or shapes depend on B, T or on tensor values.
    """
    limits = {"B": batch_size, "T": max_length, "N": max_length}
    # The examples have to be within the limits; which of them a row may use, the runtime checks.
    dims = {
        name: Dim(name, min=1, max=max(EXAMPLE_SIZES[name], limit))
        for name, limit in limits.items()
    }
    dims["J"] = Dim("J", min=0, max=num_speculative_tokens)
    sizes = {**EXAMPLE_SIZES, "J": num_speculative_tokens}
    shapes = tuple(
        {axis: dims[size] for axis, size in enumerate(spec.shape) if isinstance(size, str)}
        for spec in module.inputs
    )
    examples = tuple(example(spec, sizes) for spec in module.inputs)
    with torch.no_grad(), collect_callees() as callees:
        try:
            exported = torch.export.export(module, examples, dynamic_shapes=(shapes,), strict=False)
        except Exception as error:
            raise CaptureError(f"torch.export refused the graph: {first_line(error)}") from error
    exported = splice_callees(exported, callees)
    return Graph(exported, tuple(module.inputs), _output_specs(module, exported))


def example(spec: TensorSpec, sizes: Mapping[str, int] = EXAMPLE_SIZES) -> Tensor:
    """A small valid value for one input."""
    shape = [sizes[size] if isinstance(size, str) else size for size in spec.shape]
    if spec.name == "num_new":
        return torch.ones(shape, dtype=spec.dtype)
    return torch.zeros(shape, dtype=spec.dtype)


def as_function(graph: Graph) -> nn.Module:
    """The graph as a module that can be called, and composed, with tensors in input order."""
    return graph.exported.module(check_guards=False)


def call(graph: Graph, module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Run `module` (made by `as_function`) on inputs by name; outputs by name."""
    outputs = module(*(tensors[spec.name] for spec in graph.inputs))
    return {spec.name: value for spec, value in zip(graph.outputs, outputs, strict=True)}


def first_line(error: BaseException) -> str:
    """The first non-empty line of an error's message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _output_specs(module: Composite, exported: ExportedProgram) -> tuple[TensorSpec, ...]:
    symbols = _symbol_names(module.inputs, exported)
    output_node = next(node for node in exported.graph.nodes if node.op == "output")
    values = [node.meta["val"] for node in output_node.args[0]]
    inputs = {spec.name for spec in module.inputs}
    return tuple(
        TensorSpec(
            name,
            value.dtype,
            tuple(_size(size, symbols) for size in value.shape),
            alias_of=_updated_input(name, inputs),
        )
        for name, value in zip(module.output_tensors, values, strict=True)
    )


def _symbol_names(inputs: Sequence[TensorSpec], exported: ExportedProgram) -> Mapping[str, str]:
    placeholders = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    names = {}
    for spec, user in zip(inputs, exported.graph_signature.user_inputs, strict=True):
        value = placeholders[str(user)].meta["val"]
        for size, label in zip(value.shape, spec.shape, strict=True):
            if isinstance(label, str):
                names[str(size)] = label
    return names


def _size(size: Any, symbols: Mapping[str, str]) -> int | str:
    """A number, or the size in our names: `J+1`."""
    if isinstance(size, int):
        return size
    return re.sub(r"\w+", lambda word: symbols.get(word[0], word[0]), str(size)).replace(" ", "")
