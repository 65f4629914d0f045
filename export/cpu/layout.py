"""From heads [B, H, T, D] back to tokens [B, T, H * D], which is how projections make them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from spec_compile.export.cpu.cached_attention import sizes_of
from spec_compile.export.cpu.lowering import constant, produced_by

_SWAPPED = [0, 2, 1, 3]


def by_token(heads: ir.Value) -> tuple[ir.Value, list[ir.Node]]:
    """The same numbers as [B, T, H * D], and the nodes to insert for it, if any."""
    source = _source(heads)
    if source is not None:
        return source, []
    nodes: list[ir.Node] = []
    swapped = _swapped_source(heads)
    if swapped is None:
        nodes.append(ir.node("Transpose", [heads], {"perm": _SWAPPED}))
        swapped = nodes[-1].outputs[0]
    _, count, _, width = sizes_of(heads)
    sizes = np.array([0, 0, int(count) * int(width)], dtype=np.int64)
    shape = constant(ir.tensor(sizes))
    nodes += [shape, ir.node("Reshape", [swapped, shape.outputs[0]])]
    return nodes[-1].outputs[0], nodes


def size_of_tokens(heads: ir.Value, axis: int) -> ir.Node:
    """A node that gives B (axis 0) or T (axis 1) of `heads` [B, H, T, D], as [1] int64.

    It reads the tensor that projections made, so that nothing else has to be kept for it.
    """
    source = _source(heads)
    if source is None:
        source, axis = heads, 2 * axis
    node = ir.node("Shape", [source], {"start": axis, "end": axis + 1})
    node.outputs[0].type = ir.TensorType(ir.DataType.INT64)
    node.outputs[0].shape = ir.Shape([1])
    return node


def packed_source(parts: Sequence[ir.Value]) -> ir.Value | None:
    """The tensor [B, T, N] that `parts`, heads of queries, keys and values, split without rest."""
    sources = [_source(part) for part in parts]
    split = produced_by(sources[0], "Split")
    if split is None or list(split.outputs) != sources:
        return None
    axis, whole = split.attributes.get("axis"), split.inputs[0]
    assert whole is not None
    last = len(sizes_of(sources[0])) - 1 if sources[0] is not None else -1
    return whole if axis is not None and axis.as_int() in (-1, last) else None


def _source(heads: ir.Value) -> ir.Value | None:
    """[B, T, H * D] that was reshaped and swapped into `heads`."""
    reshape = produced_by(_swapped_source(heads), "Reshape")
    source = reshape.inputs[0] if reshape is not None else None
    if source is None or len(sizes_of(source)) != 3:
        return None
    rows, count, tokens, width = sizes_of(heads)
    fits = sizes_of(source) == [rows, tokens, int(count) * int(width)]
    return source if fits else None


def _swapped_source(heads: ir.Value) -> ir.Value | None:
    """[B, T, H, D] that was transposed into `heads`."""
    transpose = produced_by(heads, "Transpose")
    if transpose is None or list(transpose.attributes["perm"].as_ints()) != _SWAPPED:
        return None
    return transpose.inputs[0]
