"""The standard form of cached attention, found in a graph: cache writes, mask, attention."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from spec_compile.export.cpu.lowering import produced_by


@dataclass(frozen=True)
class CachedAttention:
    """One layer's attention over caches that were just written to.

    Args:
        node: `Attention`.
        keys: the `TensorScatter` that writes the new keys.
        values: the one that writes the new values.
        mask: boolean, [B or 1, 1, T, S], before it is cut to the entries in use.
    """

    node: ir.Node
    keys: ir.Node
    values: ir.Node
    mask: ir.Value

    @property
    def lengths(self) -> ir.Value:
        """Valid cache entries per row, [B] int64."""
        return _given(self.keys.inputs[2])

    @property
    def new_keys(self) -> ir.Value:
        """[B, H_kv, T, D]."""
        return _given(self.keys.inputs[1])

    @property
    def new_values(self) -> ir.Value:
        """[B, H_kv, T, D_v]."""
        return _given(self.values.inputs[1])

    @property
    def query(self) -> ir.Value:
        """[B, H, T, D]."""
        return _given(self.node.inputs[0])

    @property
    def slots(self) -> int:
        """S."""
        return sizes_of(self.keys.outputs[0])[2]  # type: ignore[return-value]

    @property
    def owner(self) -> str:
        """The model whose cache this is: `draft` or `target`."""
        # Every write of a cache is an output of the graph, named after its input.
        name = str(self.keys.outputs[0].name)
        return "draft" if re.fullmatch(r"next\d*_draft_.*", name) else "target"


def cached_attentions(graph: ir.Graph) -> Iterator[CachedAttention]:
    """Every attention of `graph` in the standard form, in order."""
    for node in list(graph):
        if node.op_type != "Attention" or node.domain:
            continue
        found = _match(node)
        if found is not None:
            yield found


def sizes_of(value: ir.Value) -> list[int | str]:
    """The shape, symbols as text; empty when it is not known."""
    if value.shape is None:
        return []
    return [size if isinstance(size, int) else str(size) for size in value.shape]


def _match(node: ir.Node) -> CachedAttention | None:
    keys = _write(node.inputs[1])
    values = _write(node.inputs[2])
    mask = _uncut(node.inputs[3]) if len(node.inputs) == 4 else None
    if keys is None or values is None or mask is None or len(node.outputs) != 1:
        return None
    if keys.inputs[2] is not values.inputs[2] or len(sizes_of(node.outputs[0])) != 4:
        return None
    shapes = [sizes_of(value) for value in (keys.outputs[0], values.outputs[0], mask)]
    slots = shapes[0][2] if len(shapes[0]) == 4 else None
    if not isinstance(slots, int) or shapes[1][2] != slots or shapes[2][-1] != slots:
        return None
    return CachedAttention(node, keys, values, mask)


def _write(value: ir.Value | None) -> ir.Node | None:
    """The write of a cache, which `value` is, or is a slice of."""
    write = produced_by(_uncut(value), "TensorScatter")
    axis = None if write is None else write.attributes.get("axis")
    return write if axis is not None and axis.as_int() == 2 else None


def _uncut(value: ir.Value | None) -> ir.Value | None:
    cut = produced_by(value, "Slice")
    return value if cut is None else cut.inputs[0]


def _given(value: ir.Value | None) -> ir.Value:
    assert value is not None
    return value
