"""The verify graph without its acceptance tail: the same nodes up to the logits, and no further."""

from __future__ import annotations

from pathlib import Path

import onnx

_HEADS = frozenset({"Gemm", "MatMul", "MatMulNBits", "FusedMatMul"})


def cut_tail(path: Path, vocab_size: int, cache_outputs: list[str]) -> tuple[bytes, str]:
    """Cut a verify graph behind its head.

    The head is the last matrix product with a weight that has `vocab_size` among its sizes. The
    graph's outputs become the caches and the head's output [k + 1, V]; whatever only the old
    outputs needed (sampling transforms, acceptance, and the inputs they read) is removed. Weights
    stay external, in the files beside `path`.

    Args:
        path: the ONNX file.
        vocab_size: V.
        cache_outputs: names of the outputs to keep.

    Returns:
        The model's bytes, and the name of the logits.

    Raises:
        SystemExit: no such matrix product.
    """
    model = onnx.load(path, load_external_data=False)
    logits = _head_output(model.graph, vocab_size)
    kept = {logits, *cache_outputs}
    nodes = _needed_nodes(model.graph, kept)
    read = {name for node in nodes for name in _inputs(node)}
    outputs = [output for output in model.graph.output if output.name in cache_outputs]
    outputs.append(onnx.helper.make_tensor_value_info(logits, onnx.TensorProto.FLOAT, None))
    inputs = [value for value in model.graph.input if value.name in read]
    weights = [tensor for tensor in model.graph.initializer if tensor.name in read]
    graph = onnx.helper.make_graph(nodes, "verify_without_tail", inputs, outputs, weights)
    graph.value_info.extend(model.graph.value_info)
    cut = onnx.helper.make_model(
        graph,
        opset_imports=model.opset_import,
        functions=model.functions,
        ir_version=model.ir_version,
    )
    return cut.SerializeToString(), logits


def _head_output(graph: onnx.GraphProto, vocab_size: int) -> str:
    sizes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for node in reversed(graph.node):
        shapes = [sizes[name] for name in node.input if name in sizes]
        if node.op_type in _HEADS and any(vocab_size in shape for shape in shapes):
            return str(node.output[0])
    raise SystemExit(f"{graph.name}: no matrix product with {vocab_size} columns was found")


def _needed_nodes(graph: onnx.GraphProto, outputs: set[str]) -> list[onnx.NodeProto]:
    needed, nodes = set(outputs), []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            nodes.append(node)
            needed.update(_inputs(node))
    return nodes[::-1]


def _inputs(node: onnx.NodeProto) -> set[str]:
    """What a node reads, its subgraphs included."""
    names = {name for name in node.input if name}
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                names |= _inputs(inner)
    return names
