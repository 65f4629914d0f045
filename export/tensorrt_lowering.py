"""ONNX forms that TensorRT cannot take, or takes with another meaning, in forms that it does."""

from __future__ import annotations

import onnx_ir as ir

from spec_compile.engine_spec import WRITTEN_AGAIN
from spec_compile.errors import BackendError
from spec_compile.export.tensorrt_attention import lower_capped_attention
from spec_compile.export.tensorrt_indices import add_at_indices, choose_first_index


def lower_for_tensorrt(model: ir.Model) -> int:
    """Rewrite `model` in place; the number of nodes that were rewritten.

    Raises:
        BackendError: a node has no form that TensorRT takes.
    """
    graph = model.graph
    count = lower_capped_attention(graph) + separate_cache_writes(graph)
    return count + choose_first_index(graph) + add_at_indices(graph)


def separate_cache_writes(graph: ir.Graph) -> int:
    """Give each further write of a cache an input of its own, to be bound to the same memory.

    TensorRT updates network inputs alone, so it takes no write of what another one returned. The
    engine sees unrelated caches; who binds one address to all of them gets the writes in order,
    since the entries of a later write are computed from what the earlier ones left: by attention,
    or, where entries of a surviving draft are moved, by gathering them.
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
