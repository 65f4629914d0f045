"""Weights of ONNX models: laid out for matrix products, stored once for all graphs of a bundle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.external_data import convert_tensors_to_external

# Smaller constants stay inside the graph file.
_EXTERNAL_BYTES = 1024
_PAGE = 4096
_STORED_AS = "spec_compile.stored_as"


def fold_transposed_weights(graph: ir.Graph) -> None:
    """Store weights of products as [in, out], so that no engine transposes them when it loads.

    A weight that is also read untransposed (a head tied to the embedding) keeps its one copy:
    its products become Gemm, which takes [out, in].
    """
    for node in list(graph):
        if node.op_type != "Transpose" or list(node.attributes["perm"].as_ints()) != [1, 0]:
            continue
        weight = node.inputs[0]
        if weight is None or weight.const_value is None or not weight.is_initializer():
            continue
        if _read_untransposed(weight) and all(map(_as_gemm, list(node.outputs[0].consumers()))):
            graph.remove(node, safe=True)
        else:
            _store_transposed(graph, node, weight)


def _read_untransposed(weight: ir.Value) -> bool:
    return any(user.op_type != "Transpose" for user in weight.consumers())


def _store_transposed(graph: ir.Graph, node: ir.Node, weight: ir.Value) -> None:
    name = f"{weight.name}.T"
    if name not in graph.initializers:
        source = weight.const_value
        assert source is not None
        shape = ir.Shape(list(reversed(source.shape.numpy())))
        tensor = ir.LazyTensor(
            lambda: ir.tensor(np.ascontiguousarray(source.numpy().T)),
            source.dtype,
            shape,
            name=name,
        )
        value = ir.Value(
            name=name, shape=shape, type=ir.TensorType(source.dtype), const_value=tensor
        )
        graph.register_initializer(value)
    ir.convenience.replace_all_uses_with(node.outputs[0], graph.initializers[name])
    graph.remove(node, safe=True)
    if not weight.uses():
        del graph.initializers[str(weight.name)]


def _as_gemm(product: ir.Node) -> bool:
    """Turn MatMul(x, Transpose(w)) into Gemm(x, w, transB=1); False when x cannot be flattened."""
    rows, transposed = product.inputs
    if product.op_type != "MatMul" or rows is None or rows.shape is None or transposed is None:
        return False
    weight = transposed.producer().inputs[0]  # type: ignore[union-attr]
    assert weight is not None and weight.shape is not None
    # Not the product's own shape, which is unknown where a bias is added behind it.
    sizes = [*list(rows.shape)[:-1], weight.shape[0]]
    symbolic = [size for size in sizes if not isinstance(size, int)]
    if len(rows.shape) != 2 and len(symbolic) > 1:
        return False
    graph = product.graph
    assert graph is not None
    nodes: list[ir.Node] = []
    if len(rows.shape) != 2:
        nodes.append(_reshape(rows, [-1, int(rows.shape[-1])]))  # type: ignore[arg-type]
        rows = nodes[-1].outputs[0]
    nodes.append(ir.node("Gemm", [rows, weight], {"transB": 1}))
    if len(sizes) != 2:
        nodes.append(
            _reshape(nodes[-1].outputs[0], [s if isinstance(s, int) else -1 for s in sizes])
        )
    result = nodes[-1].outputs[0]
    result.shape, result.type = ir.Shape(sizes), product.outputs[0].type or rows.type
    graph.insert_before(product, [each for node in nodes for each in _with_constants(node)])
    ir.convenience.replace_all_uses_with(product.outputs[0], result)
    graph.remove(product, safe=True)
    return True


def _reshape(value: ir.Value, sizes: list[int]) -> ir.Node:
    shape = ir.node("Constant", [], {"value": ir.tensor(np.array(sizes, dtype=np.int64))})
    return ir.node("Reshape", [value, shape.outputs[0]])


def _with_constants(node: ir.Node) -> Iterable[ir.Node]:
    for value in node.inputs:
        producer = value.producer() if value is not None else None
        if producer is not None and producer.op_type == "Constant" and producer.graph is None:
            yield producer
    yield node


def name_weights(graph: ir.Graph, names: Mapping[int, str]) -> None:
    """Give every weight its name in `names` (by address), whatever the modules around it.

    Initializers that share one weight become one.
    """
    for value in list(graph.initializers.values()):
        raw = getattr(value.const_value, "raw", None)
        name = names.get(raw.data_ptr()) if isinstance(raw, torch.Tensor) else None
        if name is None:
            continue
        if name in graph.initializers:
            ir.convenience.replace_all_uses_with(value, graph.initializers[name])
            del graph.initializers[str(value.name)]
        else:
            value.name = name
            assert value.const_value is not None
            value.const_value.name = name


def store_as(value: ir.Value, name: str) -> None:
    """Let `value` be written as the weight `name`, whose numbers it has."""
    value.meta[_STORED_AS] = name


def store_weights(models: Mapping[str, ir.Model], folder: Path) -> None:
    """Write each distinct weight of all `models` once, to `<owner>.weights` in `folder`.

    Weights of one name are one weight. Afterwards the models refer to those files.
    """
    owners: dict[str, dict[str, ir.TensorProtocol]] = {}
    readers: dict[str, list[ir.Value]] = {}
    for model in models.values():
        for name, value in model.graph.initializers.items():
            tensor = value.const_value
            if "." in name and tensor is not None and tensor.nbytes > _EXTERNAL_BYTES:
                stored_name = value.meta.get(_STORED_AS, name)
                owners.setdefault(name.split(".")[0], {}).setdefault(stored_name, tensor)
                readers.setdefault(stored_name, []).append(value)
    for owner, tensors in owners.items():
        stored = convert_tensors_to_external(
            list(tensors.values()), folder, f"{owner}.weights", alignment=_PAGE, align_threshold=0
        )
        for name, tensor in zip(tensors, stored, strict=True):
            for value in readers[name]:
                value.const_value = _as_read(tensor, value)


def _as_read(tensor: ir.ExternalTensor, value: ir.Value) -> ir.ExternalTensor:
    """`tensor` under the name, and in the shape, in which `value` reads it."""
    assert value.shape is not None
    return ir.ExternalTensor(
        tensor.location,
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=value.shape,
        name=str(value.name),
        base_dir=tensor.base_dir,
    )
