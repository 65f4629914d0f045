"""The verify graph without its acceptance tail: the same nodes up to the logits, and no further."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx

_HEADS = frozenset({"Gemm", "MatMul", "MatMulNBits", "FusedMatMul"})


def cut_tail(
    path: Path, vocab_size: int, caches: Mapping[str, str]
) -> tuple[bytes, str, dict[str, str]]:
    """Cut a verify graph behind its head.

    The head is the last matrix product with a weight that has `vocab_size` among its sizes. The
    graph's outputs become the caches and the head's output [k + 1, V]; whatever only the old
    outputs needed (sampling transforms, acceptance, and the inputs they read) is removed. Weights
    stay external, in the files beside `path`. With several drafts the caches are cut behind the
    draft tokens' entries: that the accepted ones are moved together counts as tail.

    Args:
        path: the ONNX file.
        vocab_size: V.
        caches: names of the cache outputs, each with that of the input it aliases.

    Returns:
        The model's bytes, the name of the logits, and what the caches are called: output by input.

    Raises:
        SystemExit: no such matrix product.
    """
    model = onnx.load(path, load_external_data=False)
    logits = _head_output(model.graph, vocab_size)
    written = {name: _written(model.graph, name, output) for output, name in caches.items()}
    kept = {logits, *written.values()}
    nodes = _needed_nodes(model.graph, kept)
    read = {name for node in nodes for name in _inputs(node)}
    outputs = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in (*written.values(), logits)
    ]
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
    return cut.SerializeToString(), logits, written


def _written(graph: onnx.GraphProto, cache: str, output: str) -> str:
    """The cache with the new tokens' entries, before any are moved."""
    for node in graph.node:
        if node.op_type == "TensorScatter" and node.input[0] == cache:
            return str(node.output[0])
    return output


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
