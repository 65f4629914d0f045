"""Run the head on the rows that are used: a row gather behind the head moves in front of it.

Prefill of a long prompt then costs k+1 rows of the vocabulary projection instead of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from spec_compile.passes.base import Mismatch, Pass, PassResult
from spec_compile.passes.fuse_acceptance import FuseAcceptance
from spec_compile.passes.fuse_step import FuseStep
from spec_compile.passes.rewrite import insert_call, is_call, is_pointwise, rewrite_graphs
from spec_compile.passes.unroll_draft import UnrollDraft
from spec_compile.program import Program

aten = torch.ops.aten
_FLATTENS = (aten.view.default, aten.reshape.default, aten.flatten.using_ints)


@dataclass(frozen=True)
class Match:
    """select(view(pointwise(...(linear(hidden, weight, bias)))), rows)."""

    select: fx.Node
    pointwise: tuple[fx.Node, ...]
    linear: fx.Node


class PruneLogits(Pass):
    """Move every row gather of logits in front of the head that computes them."""

    name = "prune_logits"
    after = (UnrollDraft, FuseAcceptance, FuseStep)

    def call(self, program: Program) -> PassResult:
        return rewrite_graphs(program, _prune)


def _prune(graph: fx.Graph, mismatches: list[Mismatch]) -> int:
    count = 0
    for node in list(graph.nodes):
        if not is_call(node, aten.index_select.default):
            continue
        match = _match(node)
        if isinstance(match, Mismatch):
            mismatches.append(match)
            continue
        _replace(graph, match)
        count += 1
    return count


def _match(select: fx.Node) -> Match | Mismatch:
    """The chain from a row gather back to the head, or why there is none."""
    node: Any = select.args[0]
    if select.args[1] != 0 or not _flattens_rows(node):
        return Mismatch("the gather is not one of rows of a flattened tensor", select.name)
    pointwise: list[fx.Node] = []
    while True:
        if len(node.users) > 1:
            return Mismatch("other nodes use the logits too", node.name)
        node = node.args[0]
        if is_call(node, aten.linear.default):
            break
        if not is_pointwise(node):
            return Mismatch(f"{node.target} between head and gather may mix rows", node.name)
        pointwise.append(node)
    if len(node.users) > 1:
        return Mismatch("other nodes use the logits too", node.name)
    return Match(select, tuple(reversed(pointwise)), node)


def _flattens_rows(node: Any) -> bool:
    """Whether `node` lists the rows of a tensor, each row as it was."""
    if not isinstance(node, fx.Node) or node.target not in _FLATTENS:
        return False
    source, flat = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    return bool(flat.dim() == 2 and flat.shape[-1] == source.shape[-1])


def _replace(graph: fx.Graph, match: Match) -> None:
    hidden, *weights = match.linear.args
    width = hidden.meta["val"].shape[-1]  # type: ignore[union-attr]
    with graph.inserting_before(match.select):
        flat = insert_call(graph, aten.view.default, (hidden, [-1, width]))
        rows = insert_call(graph, aten.index_select.default, (flat, 0, match.select.args[2]))
        value = insert_call(graph, aten.linear.default, (rows, *weights))
        for node in match.pointwise:
            value = insert_call(graph, node.target, (value, *node.args[1:]))
    match.select.replace_all_uses_with(value)
    graph.eliminate_dead_code()
