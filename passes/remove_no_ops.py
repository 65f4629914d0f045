"""Remove calls that give back their input, and the assertions that tracing leaves behind."""

from __future__ import annotations

import torch
from torch import fx

from spec_compile.passes.base import Mismatch, Pass, PassResult
from spec_compile.passes.fuse_acceptance import FuseAcceptance
from spec_compile.passes.fuse_step import FuseStep
from spec_compile.passes.rewrite import rewrite_graphs, same_layout, write_in_place
from spec_compile.passes.unroll_draft import UnrollDraft
from spec_compile.program import Program

aten = torch.ops.aten
_ASSERTIONS = (aten._assert_tensor_metadata.default,)
# Give back their first argument whenever shape and type come out the same.
_CANDIDATES = (
    aten.to.dtype,
    aten.to.device,
    aten.to.dtype_layout,
    aten._to_copy.default,
    aten.slice.Tensor,
    aten.expand.default,
    aten.view.default,
    aten.reshape.default,
    aten.contiguous.default,
    aten.clone.default,
    aten.detach.default,
    aten.alias.default,
    aten.lift_fresh_copy.default,
)


class RemoveNoOps(Pass):
    """Drop assertions, same-type casts, full slices, same-shape views, copies and products by 1."""

    name = "remove_no_ops"
    after = (UnrollDraft, FuseAcceptance, FuseStep)

    def call(self, program: Program) -> PassResult:
        return rewrite_graphs(program, remove_no_ops)


def remove_no_ops(graph: fx.Graph, mismatches: list[Mismatch]) -> int:
    """Edit `graph` as the pass does; returns how often."""
    write = write_in_place(graph)
    if write is not None:
        mismatches.append(write)
        return 0
    count = 0
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _ASSERTIONS:
            graph.erase_node(node)
            count += 1
        elif _is_no_op(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
            count += 1
    return count


def _is_no_op(node: fx.Node) -> bool:
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node) or not same_layout(source, node):
        return False
    if node.target is aten.slice.Tensor:
        return _is_full_slice(node)
    if node.target is aten.dropout.default:
        return bool(node.args[1] == 0.0 or node.args[2] is False)
    if node.target is aten.mul.Tensor:
        return bool(node.args[1] == 1.0)
    return node.target in _CANDIDATES


def _is_full_slice(node: fx.Node) -> bool:
    """A slice that keeps the shape starts at 0 and steps by 1, unless sizes say so by chance."""
    start = node.args[2] if len(node.args) > 2 else 0
    step = node.args[4] if len(node.args) > 4 else 1
    return start in (0, None) and bool(step == 1)
