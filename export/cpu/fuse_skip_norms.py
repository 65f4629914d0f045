"""A residual sum and the norm behind it as one node, which gives the sum too."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from spec_compile.export.backend import BuildContext
from spec_compile.export.cpu.cached_attention import sizes_of
from spec_compile.export.cpu.lowering import (
    CONTRIB,
    Lowered,
    Lowering,
    produced_by,
    typed,
    use_contrib,
)

_FUSED = {
    "RMSNormalization": "SkipSimplifiedLayerNormalization",
    "LayerNormalization": "SkipLayerNormalization",
}


class FuseSkipNorms(Lowering):
    """A sum of two tensors and the norm of it become one Skip...LayerNormalization."""

    name = "fuse_skip_norms"

    def __call__(self, model: ir.Model, context: BuildContext) -> Lowered:
        """Edit `model` in place; see `Lowering`."""
        result, done = Lowered(), set[ir.Node]()
        places = {node: index for index, node in enumerate(model.graph.all_nodes())}
        for norm in list(model.graph):
            if norm.op_type not in _FUSED or norm.domain:
                continue
            total = produced_by(norm.inputs[0], "Add")
            if total is None or total in done:
                continue
            reason = _obstacle(norm, total, places)
            if reason:
                result.miss(norm, reason)
                continue
            _fuse(model.graph, norm, total)
            done.add(total)
            result.rewrites += 1
        if result.rewrites:
            use_contrib(model)
        return result


def _obstacle(norm: ir.Node, total: ir.Node, places: Mapping[ir.Node, int]) -> str:
    first, second = total.inputs
    assert first is not None and second is not None
    shape = sizes_of(total.outputs[0])
    if len(shape) != 3 or sizes_of(first) != shape or sizes_of(second) != shape:
        return "it does not sum two tensors [B, T, N] of one shape"
    if first.dtype != ir.DataType.FLOAT:
        return "its type is not float32"
    axis = norm.attributes.get("axis")
    if axis is not None and axis.as_int() not in (-1, 2):
        return "it is not a norm of the last axis"
    if any(each is not None and len(sizes_of(each)) != 1 for each in norm.inputs[1:]):
        return "its weight is not one number per column"
    if any(output.uses() for output in norm.outputs[1:]):
        return "its mean or deviation is used"
    # The fused node stands where the norm stands, behind whatever computes the norm's weight.
    if any(user is not norm and places[user] < places[norm] for user, _ in total.outputs[0].uses()):
        return "its sum is read before the norm"
    return ""


def _fuse(graph: ir.Graph, norm: ir.Node, total: ir.Node) -> None:
    epsilon = norm.attributes.get("epsilon")
    fused = ir.node(
        _FUSED[norm.op_type],
        [*total.inputs, *norm.inputs[1:]],
        {"epsilon": epsilon.as_float() if epsilon is not None else 1e-5},
        domain=CONTRIB,
        num_outputs=4,
    )
    graph.insert_before(norm, fused)
    for old, new in ((norm.outputs[0], fused.outputs[0]), (total.outputs[0], fused.outputs[3])):
        name = old.name
        ir.convenience.replace_all_uses_with(old, typed(new, old), replace_graph_outputs=True)
        new.name = name
    graph.remove([norm, total])
