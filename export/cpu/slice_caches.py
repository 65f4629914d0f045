"""Attend to the entries in use: cost follows the longest row, not the capacity of the caches."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from spec_compile.export.backend import BuildContext
from spec_compile.export.cpu.cached_attention import CachedAttention, cached_attentions
from spec_compile.export.cpu.layout import size_of_tokens
from spec_compile.export.cpu.lowering import Lowered, Lowering, constant, produced_by, typed
from spec_compile.export.cpu.masks import Masks


class SliceCaches(Lowering):
    """Attention reads the caches up to the longest row's last entry instead of all S slots."""

    name = "slice_caches"

    def __call__(self, model: ir.Model, context: BuildContext) -> Lowered:
        """Edit `model` in place; see `Lowering`."""
        result, slices = Lowered(), _Slices(model.graph)
        masks = Masks(context.max_length)
        for attention in cached_attentions(model.graph):
            if produced_by(attention.node.inputs[1], "Slice") is not None:
                continue
            visible = masks(attention)
            if not visible.past_only:
                reason = visible.reason or "its mask shows later slots"
                result.miss(attention.node, reason)
                continue
            slices.apply(attention)
            result.rewrites += 1
        return result


class _Slices:
    """Slices up to max(lengths) + T; that number, and each mask's slice, is computed once."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.ends: dict[tuple[ir.Value, str], ir.Value] = {}
        self.masks: dict[tuple[ir.Value, ir.Value], ir.Value] = {}
        self.numbers: dict[int, ir.Value] = {}

    def apply(self, attention: CachedAttention) -> None:
        node, end = attention.node, self._end(attention)
        for index, axis in ((1, 2), (2, 2), (3, 3)):
            source = node.inputs[index]
            assert source is not None
            if index == 3:
                key = (source, end)
                if key not in self.masks:
                    self.masks[key] = self._slice(attention, source, end, axis)
                cut = self.masks[key]
            else:
                cut = self._slice(attention, source, end, axis)
            node.replace_input_with(index, cut)

    def _end(self, attention: CachedAttention) -> ir.Value:
        assert attention.new_keys.shape is not None
        key = (attention.lengths, str(attention.new_keys.shape[2]))
        if key not in self.ends:
            longest = ir.node("ReduceMax", [attention.lengths], {"keepdims": 1})
            new = size_of_tokens(attention.new_values, 1)
            total = ir.node("Add", [longest.outputs[0], new.outputs[0]])
            self._insert(attention, longest, new, total)
            for node in (longest, new, total):
                node.outputs[0].type = ir.TensorType(ir.DataType.INT64)
                node.outputs[0].shape = ir.Shape([1])
            self.ends[key] = total.outputs[0]
        return self.ends[key]

    def _slice(
        self, attention: CachedAttention, source: ir.Value, end: ir.Value, axis: int
    ) -> ir.Value:
        node = ir.node("Slice", [source, self._number(0), end, self._number(axis)])
        self._insert(attention, node)
        cut = typed(node.outputs[0], source)
        assert source.shape is not None
        cut.shape = ir.Shape([None if i == axis else size for i, size in enumerate(source.shape)])
        return cut

    def _number(self, number: int) -> ir.Value:
        if number not in self.numbers:
            node = constant(ir.tensor(np.array([number], dtype=np.int64)))
            self.graph.insert_before(self.graph[0], node)
            self.numbers[number] = node.outputs[0]
        return self.numbers[number]

    def _insert(self, attention: CachedAttention, *nodes: ir.Node) -> None:
        self.graph.insert_before(attention.node, nodes)
