"""Shared by the rewriting passes: apply one edit to every graph, insert nodes with metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from spec_compile.passes.base import Mismatch, PassResult
from spec_compile.program import Program

aten = torch.ops.aten
_POINTWISE = (aten.div.Tensor, aten.mul.Tensor, aten.tanh.default, aten.neg.default)

Rewrite = Callable[[fx.Graph, list[Mismatch]], int]


def rewrite_graphs(program: Program, rewrite: Rewrite) -> PassResult:
    """Run `rewrite` on a copy of every graph; it returns how often it changed something."""
    total, mismatches = 0, list[Mismatch]()
    for name, graph in program.graphs.items():
        edited, count = graph.edited(lambda copied: rewrite(copied, mismatches))
        total += count
        if count:
            program = program.with_graph(name, edited)
    return PassResult(program, total, tuple(mismatches))


def insert_call(graph: fx.Graph, target: Any, args: tuple[Any, ...]) -> fx.Node:
    """A new call at the graph's insert point, with the metadata that tracing would give it."""
    node = graph.call_function(target, args)
    values = fx.map_arg(args, lambda argument: argument.meta["val"])
    node.meta["val"] = target(*values)
    return node


def is_call(node: object, target: Any) -> bool:
    """Whether `node` is a call of the operator overload `target`."""
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target is target


def is_pointwise(node: fx.Node) -> bool:
    """Whether `node` maps each element of its first argument by itself, with numbers alone."""
    others = node.args[1:]
    return (
        node.op == "call_function"
        and node.target in _POINTWISE
        and all(isinstance(other, int | float) for other in others)
    )


def same_layout(before: fx.Node, after: fx.Node) -> bool:
    """Whether two nodes hold values of one shape, type and order in memory."""
    first, second = before.meta.get("val"), after.meta.get("val")
    return (
        isinstance(first, torch.Tensor)
        and isinstance(second, torch.Tensor)
        and first.dtype == second.dtype
        and len(first.shape) == len(second.shape)
        and all(str(x) == str(y) for x, y in zip(first.shape, second.shape, strict=True))
        and all(str(x) == str(y) for x, y in zip(first.stride(), second.stride(), strict=True))
    )


def write_in_place(graph: fx.Graph) -> Mismatch | None:
    """The first call that writes to its arguments: values of such a graph depend on the order."""
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            reason = f"{node.target} writes in place, so the graph stays as it is"
            return Mismatch(reason, node.name)
    return None
