"""Nodes of an ONNX graph, written down as calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir


class Tape:
    """Nodes as they are written down; each call returns the new node's output."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []

    def __call__(self, op: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Write down the operator `op` of the standard domain."""
        self.nodes.append(ir.node(op, inputs, attributes))
        return self.nodes[-1].outputs[0]

    def constant(self, value: np.ndarray) -> ir.Value:
        """A constant of the type of `value`."""
        return self("Constant", value=ir.tensor(value))

    def number(self, value: float) -> ir.Value:
        """A float32 scalar."""
        return self.constant(np.array(value, dtype=np.float32))

    def axes(self, *axes: int) -> ir.Value:
        """What operators take as their axes."""
        return self.constant(np.array(axes, dtype=np.int64))

    def reshape(self, value: ir.Value | None, sizes: list[int]) -> ir.Value:
        """`value` in other sizes; 0 keeps one, -1 takes the rest."""
        return self("Reshape", value, self.axes(*sizes))

    def replace(self, node: ir.Node, result: ir.Value) -> None:
        """Put these nodes in the place of `node`, whose only output `result` stands for."""
        graph, old = node.graph, node.outputs[0]
        assert graph is not None
        result.name, result.shape, result.type = old.name, old.shape, old.type
        graph.insert_before(node, self.nodes)
        ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=True)
        graph.remove(node, safe=True)
