"""Attention with soft-capped scores as products and softmax: TensorRT's own has no such form."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from spec_compile.errors import BackendError
from spec_compile.export.tensorrt_tape import Tape


def lower_capped_attention(graph: ir.Graph) -> int:
    """Replace every `Attention` that caps its scores; the number of them.

    Raises:
        BackendError: its sizes are not known.
    """
    count = 0
    for node in list(graph):
        if node.op_type == "Attention" and node.attributes.get_float("softcap", 0.0) != 0.0:
            _replace_by_products(node)
            count += 1
    return count


def _replace_by_products(node: ir.Node) -> None:
    """softmax(mask(cap(scale * q @ k))) @ v, in float32 between the products.

    Queries [B, H, T, D] that share a head of keys become rows of one product, so that nothing is
    repeated: [B, H_kv, H / H_kv * T, D].
    """
    query, keys, values, mask = node.inputs[:4]
    (heads, width), (groups, slots) = _sizes(query, 1, 3), _sizes(keys, 1, 2)
    (value_width,) = _sizes(values, 3)
    cap = node.attributes.get_float("softcap")
    scale = node.attributes.get_float("scale", width**-0.5)
    kind = query.dtype if query is not None else None
    assert kind is not None and mask is not None
    tape = Tape()
    rows = tape.reshape(query, [0, groups, -1, width])
    scores = tape("MatMul", rows, tape("Transpose", keys, perm=[0, 1, 3, 2]))
    scores = tape("Cast", scores, to=ir.DataType.FLOAT)
    capped = tape("Tanh", tape("Mul", scores, tape.number(scale / cap)))
    scores = tape.reshape(tape("Mul", capped, tape.number(cap)), [0, heads, -1, slots])
    masked = tape("Where", mask, scores, tape.number(-np.inf))
    weights = tape("Cast", tape("Softmax", masked, axis=-1), to=kind)
    output = tape("MatMul", tape.reshape(weights, [0, groups, -1, slots]), values)
    tape.replace(node, tape.reshape(output, [0, heads, -1, value_width]))


def _sizes(value: ir.Value | None, *axes: int) -> tuple[int, ...]:
    shape = None if value is None else value.shape
    sizes = [None if shape is None else shape[axis] for axis in axes]
    if not all(isinstance(size, int) for size in sizes):
        raise BackendError("attention with capped scores needs heads and widths of known size")
    return tuple(sizes)  # type: ignore[arg-type]
