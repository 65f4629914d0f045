"""Readable hand-made ONNX graphs: `g.Add(a, b)` adds a node and returns its output's name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import TensorProto, helper, numpy_helper

from spec_compile.manifest import GraphSpec, TensorSpec

_ONNX_TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}


class GraphBuilder:
    """Collects nodes, constants and tensors of one graph."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._inputs: list[TensorSpec] = []
        self._outputs: list[TensorSpec] = []
        self._count = 0

    def __getattr__(self, op: str) -> Callable[..., str]:
        """`g.Op(a, b, axis=1)`: a node of the standard domain with one output."""

        def add(*inputs: str, name: str | None = None, **attributes: Any) -> str:
            output = name or self._fresh(op)
            self._nodes.append(helper.make_node(op, list(inputs), [output], **attributes))
            return output

        return add

    def const(self, value: ArrayLike, dtype: str = "int64") -> str:
        """A constant tensor."""
        array: NDArray[Any] = np.asarray(value, dtype=dtype)
        name = self._fresh("const")
        self._constants.append(numpy_helper.from_array(array, name))
        return name

    def input(self, name: str, dtype: str, shape: Sequence[int | str]) -> str:
        """A graph input."""
        self._inputs.append(TensorSpec(name, dtype, tuple(shape)))
        return name

    def output(
        self,
        value: str,
        name: str,
        dtype: str,
        shape: Sequence[int | str],
        alias_of: str | None = None,
    ) -> None:
        """Make `value` the graph output `name`."""
        if value != name:
            self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(TensorSpec(name, dtype, tuple(shape), alias_of))

    def save(self, path: Path) -> GraphSpec:
        """Write the graph and return its entry for the manifest."""
        graph = helper.make_graph(
            self._nodes,
            path.stem,
            [_value_info(t) for t in self._inputs],
            [_value_info(t) for t in self._outputs],
            self._constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
        model.ir_version = 11
        onnx.checker.check_model(model)
        onnx.save(model, path)
        return GraphSpec(path.name, tuple(self._inputs), tuple(self._outputs))

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}"


def _value_info(tensor: TensorSpec) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, _ONNX_TYPES[tensor.dtype], tensor.shape)
