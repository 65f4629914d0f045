"""ONNX forms that TensorRT cannot take, or takes with another meaning, in forms that it does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from spec_compile.engine_spec import WRITTEN_AGAIN
from spec_compile.errors import BackendError
from spec_compile.export.tensorrt_attention import lower_capped_attention


def lower_for_tensorrt(model: ir.Model) -> int:
    """Rewrite `model` in place; the number of nodes that were rewritten."""
    graph = model.graph
    count = lower_capped_attention(graph)
    return count + separate_cache_writes(graph) + _choose_first_index(graph)


def separate_cache_writes(graph: ir.Graph) -> int:
    """Give each further write of a cache an input of its own, to be bound to the same memory.

    TensorRT updates network inputs alone, so it takes no write of what another one returned. The
    engine sees unrelated caches; who binds one address to all of them gets the writes in order,
    since the entries of a later write are computed from what attention read after the earlier one.
    """
    count = 0
    for node in graph:
        if node.op_type != "TensorScatter":
            continue
        source, cache = node.inputs[0], _written_cache(node)
        if source is cache:
            continue
        name = f"{node.outputs[0].name}{WRITTEN_AGAIN}"
        again = ir.Value(name=name, shape=cache.shape, type=cache.type)
        graph.inputs.append(again)
        node.replace_input_with(0, again)
        count += 1
    return count


def _written_cache(node: ir.Node) -> ir.Value:
    source = node.inputs[0]
    while source is not None and not source.is_graph_input():
        writer = source.producer()
        if writer is None or writer.op_type != "TensorScatter":
            source = None
        else:
            source = writer.inputs[0]
    if source is None:
        raise BackendError(f"TensorRT writes caches that are inputs only, not that of {node.name}")
    return source


def _choose_first_index(graph: ir.Graph) -> int:
    """Replace ArgMax, which may return any of several largest, by the lowest index of them.

    Where nothing is largest (NaN), the last index is returned: inside, as every index must be.
    """
    count = 0
    for node in list(_all_nodes(graph)):
        if node.op_type == "ArgMax":
            parts = list(_first_index(node))
            owner = node.graph
            assert owner is not None
            owner.insert_before(node, parts)
            ir.convenience.replace_all_uses_with(
                node.outputs[0], parts[-1].outputs[0], replace_graph_outputs=True
            )
            owner.remove(node, safe=True)
            count += 1
    return count


def _first_index(node: ir.Node) -> Iterator[ir.Node]:
    scores, result = node.inputs[0], node.outputs[0]
    axis = node.attributes.get_int("axis", 0)
    width = None if scores is None or scores.shape is None else scores.shape[axis]
    if not isinstance(width, int) or axis not in (-1, len(scores.shape) - 1):  # type: ignore[arg-type,union-attr]
        raise BackendError("TensorRT's argmax needs a last axis of known size")
    axes = _constant(np.array([-1]))
    index, last = _constant(np.arange(width)), _constant(np.array(width - 1))
    yield from (axes, index, last)
    largest = ir.node("ReduceMax", [scores, axes.outputs[0]], {"keepdims": 1})
    equal = ir.node("Equal", [scores, largest.outputs[0]])
    chosen = ir.node("Where", [equal.outputs[0], index.outputs[0], last.outputs[0]])
    keep = node.attributes.get_int("keepdims", 1)
    first = ir.node("ReduceMin", [chosen.outputs[0], axes.outputs[0]], {"keepdims": keep})
    first.outputs[0].name = result.name
    first.outputs[0].shape, first.outputs[0].type = result.shape, result.type
    yield from (largest, equal, chosen, first)


def _constant(value: np.ndarray) -> ir.Node:
    return ir.node("Constant", [], {"value": ir.tensor(value.astype(np.int64))})


def _all_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """Nodes of a graph and of the branches inside it."""
    return graph.all_nodes()
