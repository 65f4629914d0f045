"""What a lowering is: an edit of one ONNX model that keeps its numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import onnx_ir as ir

from spec_compile.export.backend import BuildContext

CONTRIB = "com.microsoft"


@dataclass
class Lowered:
    """What a lowering did to one model.

    Args:
        rewrites: how many times it changed something.
        misses: near misses, as (node, reason).
    """

    rewrites: int = 0
    misses: list[tuple[str, str]] = field(default_factory=list)

    def miss(self, node: ir.Node, reason: str) -> None:
        """Note why `node` stays as it is."""
        self.misses.append((str(node.outputs[0].name), reason))


class Lowering(ABC):
    """One kind of edit; the first line of the docstring is what people read about it."""

    name: ClassVar[str]

    @abstractmethod
    def __call__(self, model: ir.Model, context: BuildContext) -> Lowered:
        """Edit `model` in place."""


def use_contrib(model: ir.Model) -> None:
    """Declare the operators that are ONNX Runtime's own."""
    model.opset_imports[CONTRIB] = 1


def constant(value: ir.TensorProtocol) -> ir.Node:
    """A node that gives `value`."""
    return ir.node("Constant", [], {"value": value})


def typed(value: ir.Value, like: ir.Value) -> ir.Value:
    """`value` with the type and shape of `like`."""
    value.type, value.shape = like.type, like.shape
    return value


def only_user(value: ir.Value, op_type: str) -> ir.Node | None:
    """The one node that reads `value`, if it is an `op_type` and nothing else needs the value."""
    users = list(value.uses())
    if len(users) != 1 or value.is_graph_output() or users[0][0].op_type != op_type:
        return None
    return users[0][0]


def produced_by(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """The node that computes `value`, if it is an `op_type`."""
    producer = value.producer() if value is not None else None
    return producer if producer is not None and producer.op_type == op_type else None
