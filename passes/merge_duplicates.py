"""Merge common subexpressions: two calls of one operator on the same arguments become one."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from spec_compile.passes.base import Mismatch, Pass, PassResult
from spec_compile.passes.remove_no_ops import RemoveNoOps
from spec_compile.passes.rewrite import rewrite_graphs, write_in_place
from spec_compile.program import Program


class MergeDuplicates(Pass):
    """Keep the first of equal pure calls: masks, position tables and casts of unrolled steps."""

    name = "merge_duplicates"
    after = (RemoveNoOps,)

    def call(self, program: Program) -> PassResult:
        return rewrite_graphs(program, merge_duplicates)


def merge_duplicates(graph: fx.Graph, mismatches: list[Mismatch]) -> int:
    """Edit `graph` as the pass does; returns how often."""
    write = write_in_place(graph)
    if write is not None:
        mismatches.append(write)
        return 0
    seen: dict[Any, fx.Node] = {}
    count = 0
    for node in list(graph.nodes):
        if not _is_pure_call(node):
            continue
        key = (node.target, _frozen(node.args), _frozen(node.kwargs))
        first = seen.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
            count += 1
    return count


def _is_pure_call(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    if not isinstance(node.target, torch._ops.OpOverload):
        # Python functions on symbolic sizes, and the picking of one of several results.
        return getattr(node.target, "__module__", "") == "_operator"
    schema = node.target._schema
    return not schema.is_mutable and torch.Tag.nondeterministic_seeded not in node.target.tags


def _frozen(value: Any) -> Any:
    """`value` as a hashable key that tells 1, 1.0 and True apart."""
    if isinstance(value, fx.Node):
        return value
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, _frozen(item)) for key, item in sorted(value.items()))
    return type(value), str(value)
