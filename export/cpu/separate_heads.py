"""A head that shares its weight with the embedding, as a weight of its own at the same place.

The engine packs the head's weight and then lets go of the original, unless something else reads
it too. It maps every weight of a file by itself: under a second name the original can go, and of
the table that embeddings are looked up in only the rows in use are ever read.
"""

from __future__ import annotations

import onnx_ir as ir

from spec_compile.export.backend import BuildContext
from spec_compile.export.cpu.lowering import Lowered, Lowering
from spec_compile.export.onnx_weights import store_as

_PRODUCTS = frozenset({"Gemm", "MatMul"})


class SeparateHeads(Lowering):
    """Heads tied to the embedding read it under a second name, so that it need not stay in RAM."""

    name = "separate_heads"

    def __call__(self, model: ir.Model, context: BuildContext) -> Lowered:
        """Edit `model` in place; see `Lowering`."""
        result = Lowered()
        for value in list(model.graph.initializers.values()):
            users = list(value.uses())
            products = [(n, i) for n, i in users if n.op_type in _PRODUCTS and i == 1]
            if not products or not any(node.op_type == "Gather" for node, _ in users):
                continue
            second = _copy(value)
            model.graph.register_initializer(second)
            for node, index in products:
                node.replace_input_with(index, second)
            result.rewrites += 1
        return result


def _copy(value: ir.Value) -> ir.Value:
    second = ir.Value(
        name=f"{value.name}.head",
        shape=value.shape,
        type=value.type,
        const_value=value.const_value,
    )
    store_as(second, str(value.name))
    return second
