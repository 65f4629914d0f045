"""Compose graphs by calling them: one node while tracing, spliced in afterwards.

Tracing a model again for every graph that holds it costs seconds a time. A composition is
therefore traced with one opaque node per call, and the callee's nodes are then copied in its
place, with sizes rewritten to those of the call. Weights are shared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

if TYPE_CHECKING:
    from spec_compile.program import Graph

_CALLEES: ContextVar[dict[str, Graph]] = ContextVar("spec_compile_callees")

_LIBRARY = torch.library.Library("spec_compile", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "call_graph(str callee, Tensor[] inputs) -> Tensor[]"
)


@torch.library.register_fake(  # type: ignore[untyped-decorator]
    "spec_compile::call_graph", lib=_LIBRARY
)
def _call_graph_shapes(callee: str, inputs: list[Tensor]) -> list[Tensor]:
    graph = _CALLEES.get()[callee]
    sizes = _free_sizes(graph, inputs)
    return [
        inputs[0].new_empty(
            [sizes[size] if isinstance(size, str) else size for size in spec.shape],
            dtype=spec.dtype,
        )
        for spec in graph.outputs
    ]


_CALL_GRAPH = torch.ops.spec_compile.call_graph.default


def invoke(graph: Graph, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Call `graph` from a composition that is being traced: outputs by name from inputs by name."""
    callees = _CALLEES.get()
    key = next((key for key, known in callees.items() if known is graph), f"g{len(callees)}")
    callees[key] = graph
    outputs = _CALL_GRAPH(key, [tensors[spec.name] for spec in graph.inputs])
    return {spec.name: value for spec, value in zip(graph.outputs, outputs, strict=True)}


@contextmanager
def collect_callees() -> Iterator[dict[str, Graph]]:
    """While active, `invoke` works; gives the graphs that were called."""
    callees: dict[str, Graph] = {}
    token = _CALLEES.set(callees)
    try:
        yield callees
    finally:
        _CALLEES.reset(token)


def splice_callees(program: ExportedProgram, callees: Mapping[str, Graph]) -> ExportedProgram:
    """`program` with every call replaced by a copy of the graph it calls."""
    return _Splicer(program, callees).run() if callees else program


def _free_sizes(graph: Graph, values: Sequence[Any]) -> dict[str, Any]:
    """What the free sizes "B" and "T" of `graph` are in a call with these inputs."""
    sizes: dict[str, Any] = {}
    for spec, value in zip(graph.inputs, values, strict=True):
        for label, size in zip(spec.shape, value.shape, strict=True):
            if isinstance(label, str):
                sizes.setdefault(label, size)
    return sizes


@dataclass
class _Splicer:
    program: ExportedProgram
    callees: Mapping[str, Graph]

    def run(self) -> ExportedProgram:
        self.graph, self.copies = fx.Graph(), dict[fx.Node, fx.Node]()
        self.state, self.constants = dict(self.program.state_dict), dict(self.program.constants)
        self.weights: dict[str, dict[str, fx.Node]] = {}
        self.lifted: list[InputSpec] = []
        self.like: dict[Any, Tensor] = {}
        specs = self.program.graph_signature.input_specs
        for key in self.callees:
            self._add_weights(key)
        for node in self.program.graph.nodes:
            self._copy(node)
        signature = replace(self.program.graph_signature, input_specs=[*self.lifted, *specs])
        signature = renamed_outputs(signature, self.graph)
        module = fx.GraphModule(self.program.graph_module, self.graph)
        return self.program._update(
            module, signature, state_dict=self.state, constants=self.constants
        )

    def _add_weights(self, key: str) -> None:
        """Placeholders for what a callee holds; every call of it shares them."""
        source = self.callees[key].exported
        nodes = {node.name: node for node in source.graph.nodes if node.op == "placeholder"}
        self.weights[key] = {}
        for spec in source.graph_signature.input_specs:
            if spec.kind is InputKind.USER_INPUT:
                continue
            assert spec.target is not None
            node, target = nodes[spec.arg.name], f"{key}.{spec.target}"
            placeholder = self.graph.placeholder(f"{key}_{node.name}")
            placeholder.meta = dict(node.meta)
            placeholder.meta["val"] = self._like(node.meta["val"], {})
            self.weights[key][node.name] = placeholder
            self.lifted.append(
                replace(spec, arg=TensorArgument(name=placeholder.name), target=target)
            )
            if spec.target in source.state_dict:
                self.state[target] = source.state_dict[spec.target]
            else:
                self.constants[target] = source.constants[spec.target]

    def _copy(self, node: fx.Node) -> None:
        if node.op == "call_function" and node.target is _CALL_GRAPH:
            return
        if node.op == "output":
            self.graph.output(fx.map_arg(node.args[0], lambda n: self.copies[n]))
            return
        source = node.args[0] if node.args else None
        if isinstance(source, fx.Node) and source.target is _CALL_GRAPH:
            outputs = self._outputs_of(source)
            self.copies[node] = outputs[cast(int, node.args[1])]
            return
        self.copies[node] = self.graph.node_copy(node, lambda n: self.copies[n])

    def _outputs_of(self, call: fx.Node) -> Sequence[fx.Node]:
        """The outputs of a call; its callee is copied when the first of them is asked for."""
        if "outputs" not in call.meta:
            call.meta["outputs"] = self._splice(call)
        found: Sequence[fx.Node] = call.meta["outputs"]
        return found

    def _splice(self, call: fx.Node) -> Sequence[fx.Node]:
        key, inputs = str(call.args[0]), cast(Sequence[fx.Node], call.args[1])
        graph = self.callees[key]
        arguments = [self.copies[node] for node in inputs]
        copies = self._bind(graph, key, arguments)
        sizes = self._size_map(graph, arguments)
        for node in graph.exported.graph.nodes:
            if node.op == "output":
                return [copies[value] for value in cast(Sequence[fx.Node], node.args[0])]
            if node not in copies:
                copies[node] = self.graph.node_copy(node, lambda n: copies[n])
                copies[node].meta["val"] = self._like(node.meta.get("val"), sizes)
        raise AssertionError("a graph without an output")

    def _bind(self, graph: Graph, key: str, arguments: Sequence[fx.Node]) -> dict[fx.Node, fx.Node]:
        given = dict(
            zip(map(str, graph.exported.graph_signature.user_inputs), arguments, strict=True)
        )
        placeholders = [node for node in graph.exported.graph.nodes if node.op == "placeholder"]
        known = self.weights[key] | given
        return {node: known[node.name] for node in placeholders}

    def _size_map(self, graph: Graph, arguments: Sequence[fx.Node]) -> dict[Any, Any]:
        """Symbols of the callee to expressions of the caller."""
        placeholders = {node.name: node for node in graph.exported.graph.nodes}
        sizes: dict[Any, Any] = {}
        for name, argument in zip(
            graph.exported.graph_signature.user_inputs, arguments, strict=True
        ):
            inner, outer = placeholders[str(name)].meta["val"], argument.meta["val"]
            for mine, theirs in zip(inner.shape, outer.shape, strict=True):
                if isinstance(mine, torch.SymInt):
                    sizes[mine.node.expr] = _expression(theirs)
        return sizes

    def _like(self, value: Any, sizes: Mapping[Any, Any]) -> Any:
        """The metadata of a callee's node, in the caller's symbols."""
        if isinstance(value, list | tuple):
            return type(value)(self._like(item, sizes) for item in value)
        if isinstance(value, torch.SymInt):
            return self._size(value, sizes)
        if not isinstance(value, FakeTensor):
            return value
        shape = [self._size(size, sizes) for size in value.shape]
        strides = [self._size(stride, sizes) for stride in value.stride()]
        # Layers repeat: making a fake tensor takes longer than copying its node.
        key = (value.dtype, tuple(map(_expression, shape)), tuple(map(_expression, strides)))
        if key not in self.like:
            with self._fake_mode():
                self.like[key] = torch.empty_strided(shape, strides, dtype=value.dtype)
        return self.like[key]

    def _size(self, size: int | torch.SymInt, sizes: Mapping[Any, Any]) -> Any:
        if isinstance(size, int):
            return size
        expression = size.node.expr.xreplace(sizes)
        if expression.is_number:
            return int(expression)
        environment = self._fake_mode().shape_env
        assert environment is not None
        return environment.create_symintnode(expression, hint=None)

    def _fake_mode(self) -> FakeTensorMode:
        if not hasattr(self, "mode"):
            values = (node.meta.get("val") for node in self.program.graph.nodes)
            self.mode = next(v.fake_mode for v in values if isinstance(v, FakeTensor))
        return self.mode


def _expression(size: int | torch.SymInt) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def renamed_outputs(signature: Any, graph: fx.Graph) -> Any:
    """`signature` with the names that the outputs of `graph` have now."""
    output_node = next(node for node in graph.nodes if node.op == "output")
    specs = [
        replace(spec, arg=type(spec.arg)(name=node.name))
        for spec, node in zip(signature.output_specs, output_node.args[0], strict=True)
    ]
    return replace(signature, output_specs=specs)
