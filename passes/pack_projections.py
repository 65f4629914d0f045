"""Pack projections: linear layers that read one tensor become one product with all their rows.

A decoding step is bound by starting many small products; queries, keys and values, or gate and up,
are one larger product here.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from spec_compile.graph_weights import new_weights, weights_of, without_unused_weights
from spec_compile.passes.base import Mismatch, Pass, PassResult
from spec_compile.passes.rewrite import insert_call, is_call, write_in_place
from spec_compile.program import Graph, Program

aten = torch.ops.aten


@dataclass
class _Packed:
    """Weights packed so far by the addresses of their parts: graphs of one model share them."""

    names: dict[int, str]
    tensors: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def pack(self, parts: Sequence[Tensor]) -> Tensor:
        """The rows of all `parts`, one below the other; the same tensor for the same parts."""
        key = tuple(part.data_ptr() for part in parts)
        if key not in self.tensors:
            packed = torch.nn.Parameter(torch.cat([part.detach() for part in parts]), False)
            self.tensors[key] = packed
            known = [self.names[address] for address in key if address in self.names]
            if len(known) == len(key):
                self.names[packed.data_ptr()] = joined_name(known)
        return self.tensors[key]


class PackProjections(Pass):
    """Make one linear layer of those that read the same tensor: queries, keys, values; gate, up."""

    name = "pack_projections"

    def call(self, program: Program) -> PassResult:
        total, mismatches = 0, list[Mismatch]()
        packed = _Packed(dict(program.weight_names))
        for name, graph in program.graphs.items():
            edited, count = _pack_graph(graph, packed, mismatches)
            total += count
            if count:
                program = program.with_graph(name, edited)
        if total:
            program = program.with_weight_names(packed.names)
        return PassResult(program, total, tuple(mismatches))


def joined_name(names: Sequence[str]) -> str:
    """One name for several weights: `a.q.weight`, `a.k.weight` -> `a.q+k.weight`."""
    parts = [name.split(".") for name in names]
    if len({len(part) for part in parts}) > 1:
        return "+".join(names)
    return ".".join("+".join(dict.fromkeys(column)) for column in zip(*parts, strict=True))


def _pack_graph(graph: Graph, packed: _Packed, mismatches: list[Mismatch]) -> tuple[Graph, int]:
    weights = weights_of(graph)
    groups = _groups(graph.exported.graph, weights, mismatches)
    if not groups:
        return graph, 0
    added: dict[str, Tensor] = {}
    placeholders: dict[tuple[str, ...], str] = {}
    for group in groups:
        for operands in _operands(group):
            target = f"packed.{joined_name(operands)}"
            added[target] = packed.pack([weights[name] for name in operands])
            placeholders[operands] = target
    extended, names = new_weights(graph, added)
    replaced = {operands: names[target] for operands, target in placeholders.items()}
    firsts = {group[0].name: [node.name for node in group] for group in groups}
    edited, count = extended.edited(lambda copied: _replace(copied, firsts, replaced))
    return without_unused_weights(edited), count


def _groups(
    graph: fx.Graph, weights: Mapping[str, Tensor], mismatches: list[Mismatch]
) -> list[list[fx.Node]]:
    """Linear layers that can be one, in order; two or more a group."""
    write = write_in_place(graph)
    if write is not None:
        mismatches.append(write)
        return []
    found: dict[tuple[Any, ...], list[fx.Node]] = {}
    for node in graph.nodes:
        if not is_call(node, aten.linear.default):
            continue
        reason = _obstacle(node, weights)
        if reason is not None:
            if _has_siblings(node):
                mismatches.append(Mismatch(reason, node.name))
            continue
        key = (node.args[0], len(node.args), weights[node.args[1].name].dtype)
        found.setdefault(key, []).append(node)
    return [group for group in found.values() if len(group) > 1]


def _obstacle(node: fx.Node, weights: Mapping[str, Tensor]) -> str | None:
    for operand in node.args[1:]:
        if not isinstance(operand, fx.Node) or operand.name not in weights:
            return "its weight is computed, not stored"
        if len(operand.users) > 1:
            return "its weight is used elsewhere too"
    return None


def _has_siblings(node: fx.Node) -> bool:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return sum(is_call(user, aten.linear.default) for user in source.users) > 1


def _operands(group: Sequence[fx.Node]) -> list[tuple[str, ...]]:
    """Names of the weights, and of the biases if there are any, of a group."""
    columns = zip(*(node.args[1:] for node in group), strict=True)
    return [tuple(str(name) for name in column) for column in columns]


def _replace(
    graph: fx.Graph, groups: Mapping[str, Sequence[str]], packed: Mapping[tuple[str, ...], str]
) -> int:
    nodes = {node.name: node for node in graph.nodes}
    for names in groups.values():
        group = [nodes[name] for name in names]
        operands = [nodes[packed[column]] for column in _operands(group)]
        sizes = [int(node.meta["val"].shape[-1]) for node in group]
        with graph.inserting_before(group[0]):
            whole = insert_call(graph, aten.linear.default, (group[0].args[0], *operands))
            split = insert_call(graph, aten.split_with_sizes.default, (whole, sizes, -1))
            parts = [_part(graph, split, index) for index in range(len(group))]
        for node, part in zip(group, parts, strict=True):
            node.replace_all_uses_with(part)
            graph.erase_node(node)
    return len(groups)


def _part(graph: fx.Graph, split: fx.Node, index: int) -> fx.Node:
    """One part, laid out as the layer it stands for: calls behind it may rely on that."""
    part = graph.call_function(operator.getitem, (split, index))
    part.meta["val"] = split.meta["val"][index]
    copied = graph.call_function(
        aten.clone.default, (part,), {"memory_format": torch.contiguous_format}
    )
    copied.meta["val"] = part.meta["val"].contiguous()
    return copied
