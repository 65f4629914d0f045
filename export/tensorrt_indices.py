"""Operators over indices that TensorRT lacks, or takes with another meaning, by comparisons."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from spec_compile.errors import BackendError
from spec_compile.export.tensorrt_tape import Tape


def choose_first_index(graph: ir.Graph) -> int:
    """Replace ArgMax, which may return any of several largest, by the lowest index of them.

    Where nothing is largest (NaN), the last index is returned: inside, as every index must be.

    Returns:
        The number of nodes replaced.

    Raises:
        BackendError: one is along another axis than the last, or that has no known size.
    """
    nodes = [node for node in graph.all_nodes() if node.op_type == "ArgMax"]
    for node in nodes:
        scores, width, tape = node.inputs[0], _width(node), Tape()
        index = tape.constant(np.arange(width, dtype=np.int64))
        last = tape.constant(np.array(width - 1, dtype=np.int64))
        largest = tape("ReduceMax", scores, tape.axes(-1), keepdims=1)
        chosen = tape("Where", tape("Equal", scores, largest), index, last)
        keep = node.attributes.get_int("keepdims", 1)
        tape.replace(node, tape("ReduceMin", chosen, tape.axes(-1), keepdims=keep))
    return len(nodes)


def add_at_indices(graph: ir.Graph) -> int:
    """Replace additions into [.., V] at indices [.., N], N being small, by a sum over N.

    Returns:
        The number of nodes replaced.

    Raises:
        BackendError: one is along another axis than the last, or that has no known size.
    """
    nodes = [node for node in graph.all_nodes() if _adds(node)]
    for node in nodes:
        (data, indices, updates), width, tape = node.inputs, _width(node), Tape()
        assert data is not None and data.dtype is not None
        each = tape("Unsqueeze", indices, tape.axes(-1))
        here = tape("Equal", each, tape.constant(np.arange(width, dtype=np.int64)))
        nothing = tape.constant(np.zeros((), dtype=data.dtype.numpy()))
        placed = tape("Where", here, tape("Unsqueeze", updates, tape.axes(-1)), nothing)
        total = tape("ReduceSum", placed, tape.axes(-2), keepdims=0)
        tape.replace(node, tape("Add", data, total))
    return len(nodes)


def _adds(node: ir.Node) -> bool:
    kind = node.attributes.get_string("reduction", "none")
    return node.op_type == "ScatterElements" and kind == "add"


def _width(node: ir.Node) -> int:
    """Size of the axis that `node` works along, which has to be the last."""
    value, axis = node.inputs[0], node.attributes.get_int("axis", 0)
    shape = None if value is None else value.shape
    width = None if shape is None else shape[axis]
    if shape is None or not isinstance(width, int) or axis not in (-1, len(shape) - 1):
        raise BackendError(f"{node.op_type} for TensorRT needs a last axis of known size")
    return width
