"""Block-wise weight quantisation for ONNX Runtime, by its own quantiser.

Products with a stored matrix become `MatMulNBits`, table look-ups `GatherBlockQuantized`; both read
symmetric blocks of 4 or 8 bits with one float32 scale each. A head tied to the embedding shares
its bytes with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnxruntime.capi import _pybind_state as quantiser

from spec_compile.export.cpu.lowering import typed, use_contrib
from spec_compile.export.onnx_weights import store_as

BITS: Mapping[str, int] = {"int8": 8, "int4": 4}
BLOCK = 32
LARGE_BLOCKS = (128, 64)
"""In 8 bits a scale for more weights costs no accuracy, and the engine multiplies faster."""
_INT8_ACTIVATIONS = 4  # the accuracy level of MatMulNBits that multiplies integers


@dataclass(frozen=True)
class Blocks:
    """A matrix [N, K] as quantised blocks of its rows.

    Args:
        data: [N, ceil(K / size), size * bits / 8] uint8, offset by half their range.
        scales: [N, ceil(K / size)] float32.
        bits: 4 or 8.
    """

    data: NDArray[np.uint8]
    scales: NDArray[np.float32]
    bits: int

    @property
    def size(self) -> int:
        """Weights that share a scale."""
        return int(self.data.shape[2]) * 8 // self.bits

    def dequantised(self) -> NDArray[np.float32]:
        """[N, K rounded up to whole blocks] float32, what the engine multiplies with."""
        rows = self.data.reshape(len(self.data), -1)
        if self.bits == 4:
            rows = np.stack([rows & 15, rows >> 4], axis=-1).reshape(len(rows), -1)
        offset = 1 << (self.bits - 1)
        return (rows.astype(np.float32) - offset) * np.repeat(self.scales, self.size, axis=1)


def block_size(columns: int, bits: int) -> int:
    """Weights that share a scale, in rows of `columns`."""
    fitting = (size for size in LARGE_BLOCKS if bits == 8 and columns % size == 0)
    return next(fitting, BLOCK)


def quantise_rows(matrix: NDArray[np.float32], bits: int) -> Blocks:
    """The rows of `matrix` [N, K] in blocks."""
    rows, columns = matrix.shape
    size = block_size(columns, bits)
    count = math.ceil(columns / size)
    data = np.zeros((rows, count, size * bits // 8), dtype=np.uint8)
    scales = np.zeros(rows * count, dtype=np.float32)
    unused = np.zeros(rows * (count if bits == 8 else (count + 1) // 2), dtype=np.uint8)
    run = quantiser.quantize_matmul_8bits if bits == 8 else quantiser.quantize_matmul_4bits
    run(data, np.ascontiguousarray(matrix.T), scales, unused, size, rows, columns, True)
    return Blocks(data, scales.reshape(rows, count), bits)


class Quantiser:
    """Quantises the weights of the models of one bundle, each once.

    Args:
        kinds: `int8` or `int4` by the owner of the weights, `target` or `draft`.
    """

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self.bits = {owner: BITS[kind] for owner, kind in kinds.items()}
        self._done: dict[tuple[str, bool], Blocks] = {}

    def run(self, models: Mapping[str, ir.Model]) -> int:
        """Edit `models` in place; how many products and look-ups were rewritten."""
        count = 0
        for model in models.values():
            rewritten = [node for node in list(model.graph) if self._rewrite(model.graph, node)]
            if rewritten:
                use_contrib(model)
            for value in list(model.graph.initializers.values()):
                if not value.uses():
                    del model.graph.initializers[str(value.name)]
            count += len(rewritten)
        return count

    def _rewrite(self, graph: ir.Graph, node: ir.Node) -> bool:
        if node.op_type == "Gather" and node.domain == "":
            return self._look_up(graph, node)
        if node.op_type in ("MatMul", "Gemm") and node.domain == "":
            return self._product(graph, node)
        return False

    def _product(self, graph: ir.Graph, node: ir.Node) -> bool:
        weight = self._matrix(node.inputs[1])
        plain = node.op_type == "MatMul" or _is_plain(node)
        if weight is None or not plain:
            return False
        by_row = node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1
        blocks = self._blocks(weight, by_row)
        size = len(blocks.data)
        columns = int(weight.shape[1 if by_row else 0])  # type: ignore[arg-type,index]
        product = ir.node(
            "MatMulNBits",
            [node.inputs[0], *_stored(graph, weight, blocks, by_row)],
            {
                "K": columns,
                "N": size,
                "bits": blocks.bits,
                "block_size": blocks.size,
                "accuracy_level": _INT8_ACTIVATIONS,
            },
            domain="com.microsoft",
        )
        nodes = [product]
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is not None:
            typed(product.outputs[0], node.outputs[0])
            nodes.append(ir.node("Add", [product.outputs[0], bias]))
        _replace(graph, node, nodes)
        return True

    def _look_up(self, graph: ir.Graph, node: ir.Node) -> bool:
        table = self._matrix(node.inputs[0])
        if table is None or node.attributes.get_int("axis", 0) != 0:
            return False
        if int(table.shape[1]) % BLOCK:  # type: ignore[arg-type,index]
            return False
        blocks = self._blocks(table, True)
        data, scales = _stored(graph, table, blocks, True)
        flat = _again(graph, data, ".rows", (len(blocks.data), -1))
        shaped = _again(graph, scales, ".rows", blocks.scales.shape)
        look_up = ir.node(
            "GatherBlockQuantized",
            [flat, node.inputs[1], shaped],
            {
                "bits": blocks.bits,
                "block_size": blocks.size,
                "gather_axis": 0,
                "quantize_axis": 1,
            },
            domain="com.microsoft",
        )
        _replace(graph, node, [look_up])
        return True

    def _matrix(self, value: ir.Value | None) -> ir.Value | None:
        """`value` if it is a stored float32 matrix of a model that is to be quantised."""
        if value is None or value.const_value is None or not value.is_initializer():
            return None
        is_matrix = value.dtype == ir.DataType.FLOAT and value.shape is not None
        owner = str(value.name).split(".")[0]
        if not is_matrix or len(value.shape or ()) != 2 or owner not in self.bits:
            return None
        return value

    def _blocks(self, weight: ir.Value, by_row: bool) -> Blocks:
        key = (_stored_name(weight), by_row)
        if key not in self._done:
            assert weight.const_value is not None
            matrix = weight.const_value.numpy().astype(np.float32, copy=False)
            owner = str(weight.name).split(".")[0]
            self._done[key] = quantise_rows(matrix if by_row else matrix.T, self.bits[owner])
        return self._done[key]


def _stored_name(weight: ir.Value) -> str:
    """A tied head and its embedding are one weight under two names."""
    return str(weight.name).removesuffix(".head")


def _stored(
    graph: ir.Graph, weight: ir.Value, blocks: Blocks, by_row: bool
) -> tuple[ir.Value, ir.Value]:
    """Data and scales as initializers of `graph`, found again if they are there."""
    name = f"{_stored_name(weight)}.int{blocks.bits}" + ("" if by_row else ".T")
    found = []
    for suffix, array in ((".data", blocks.data), (".scales", blocks.scales.reshape(-1))):
        if name + suffix not in graph.initializers:
            tensor = ir.tensor(array, name=name + suffix)
            value = ir.Value(
                name=name + suffix,
                shape=ir.Shape(array.shape),
                type=ir.TensorType(tensor.dtype),
                const_value=tensor,
            )
            graph.register_initializer(value)
        found.append(graph.initializers[name + suffix])
    return found[0], found[1]


def _again(graph: ir.Graph, value: ir.Value, suffix: str, shape: tuple[int, ...]) -> ir.Value:
    """`value` under a second name and in another shape, stored once."""
    name = f"{value.name}{suffix}"
    if name not in graph.initializers:
        assert value.const_value is not None and value.dtype is not None
        tensor = ir.tensor(value.const_value.numpy().reshape(shape), name=name)
        second = ir.Value(
            name=name,
            shape=ir.Shape(tensor.numpy().shape),
            type=ir.TensorType(value.dtype),
            const_value=tensor,
        )
        store_as(second, str(value.name))
        graph.register_initializer(second)
    return graph.initializers[name]


def _is_plain(node: ir.Node) -> bool:
    attributes = node.attributes
    return (
        attributes.get_float("alpha", 1.0) == 1.0
        and attributes.get_float("beta", 1.0) == 1.0
        and attributes.get_int("transA", 0) == 0
    )


def _replace(graph: ir.Graph, node: ir.Node, nodes: list[ir.Node]) -> None:
    result = typed(nodes[-1].outputs[0], node.outputs[0])
    name = node.outputs[0].name
    graph.insert_before(node, nodes)
    ir.convenience.replace_all_uses_with(node.outputs[0], result, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    result.name = name
