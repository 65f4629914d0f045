"""Rewrite the few composite operators that tracing leaves, so that nothing is traced again.

torch.onnx.export decomposes a program by tracing it once more, which takes most of its time. Our
graphs hold only a handful of operators that it has no translation for.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from spec_compile.program import Graph

aten = torch.ops.aten
_CASTS = (aten.to.dtype, aten.to.device, aten.to.dtype_layout)
_ALIASES = (aten.detach_.default, aten.detach.default, aten.lift_fresh_copy.default)
_RENAMED = {
    aten.__and__.Tensor: aten.bitwise_and.Tensor,
    aten.__or__.Tensor: aten.bitwise_or.Tensor,
    aten.__or__.Scalar: aten.bitwise_or.Scalar,
    aten.min.other: aten.minimum.default,
    aten.max.other: aten.maximum.default,
}


def core_program(graph: Graph) -> ExportedProgram:
    """The program of `graph` in operators that ONNX export translates one by one."""
    lowered, _ = graph.edited(_lower)
    return as_core(lowered.exported)


def lower_branches(program: ExportedProgram) -> ExportedProgram:
    """The same for a program with branches, each a graph of its own; edits `program`."""
    for module in program.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            _lower(module.graph)
            module.recompile()
    return as_core(program)


def as_core(program: ExportedProgram) -> ExportedProgram:
    """A copy whose `run_decompositions` gives back itself: there is nothing left to decompose."""
    core = copy.copy(program)
    core.run_decompositions = lambda *_, **__: core
    return core


def _lower(graph: fx.Graph) -> int:
    count = 0
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _ALIASES:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
            count += 1
            continue
        replacement = _replacement(node)
        if replacement is None:
            continue
        target, args, kwargs = replacement
        with graph.inserting_before(node):
            new = graph.call_function(target, args, kwargs)
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        graph.erase_node(node)
        count += 1
    return count


def _replacement(node: fx.Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    if node.op != "call_function":
        return None
    if node.target in _CASTS:
        return aten._to_copy.default, (node.args[0],), {"dtype": node.meta["val"].dtype}
    if node.target in _RENAMED:
        return _RENAMED[node.target], node.args, {}
    if node.target is aten.flatten.using_ints:
        sizes = [size if isinstance(size, int) else -1 for size in node.meta["val"].shape]
        return (aten.reshape.default, (node.args[0], sizes), {}) if sizes.count(-1) < 2 else None
    return None
