"""Attention, cache write and rotary embedding of one row as ONNX Runtime's GroupQueryAttention.

The operator takes several new tokens of one row, or one new token of several rows. A graph that may
get several rows keeps the standard form beside it and chooses in each call: both write the caches
in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from spec_compile.export.backend import BuildContext
from spec_compile.export.cpu.branch import choose
from spec_compile.export.cpu.cached_attention import (
    CachedAttention,
    cached_attentions,
    sizes_of,
)
from spec_compile.export.cpu.layout import by_token, packed_source, size_of_tokens
from spec_compile.export.cpu.lowering import (
    CONTRIB,
    Lowered,
    Lowering,
    constant,
    only_user,
    produced_by,
    typed,
    use_contrib,
)
from spec_compile.export.cpu.masks import Masks
from spec_compile.export.cpu.rotary_tables import rows_by_position

# What the operator asks of a head's width, with and without rotary embedding inside.
_WIDTH, _ROTARY_WIDTH = 8, 16


@dataclass(frozen=True)
class _Heads:
    """Queries and keys before their rotary embedding, which the operator then does.

    Args:
        query: [B, H, T, D].
        keys: [B, H_kv, T, D].
        rotary: cosines and sines [B, T, R/2], and whether pairs are interleaved; None when what
            comes in is embedded already.
    """

    query: ir.Value
    keys: ir.Value
    rotary: tuple[ir.Value, ir.Value, int] | None


class GroupAttention(Lowering):
    """Cache write, rotary embedding and causal attention of a layer become GroupQueryAttention."""

    name = "group_attention"

    def __call__(self, model: ir.Model, context: BuildContext) -> Lowered:
        """Edit `model` in place; see `Lowering`."""
        result, builder = Lowered(), _Builder(model.graph, context)
        masks = Masks(context.max_length)
        for attention in cached_attentions(model.graph):
            reason = _obstacle(attention) or masks(attention).reason
            if reason:
                result.miss(attention.node, reason)
                continue
            builder.replace(attention)
            result.rewrites += 1
        if result.rewrites:
            use_contrib(model)
        return result


def _obstacle(attention: CachedAttention) -> str:
    query, keys, values = (
        sizes_of(each) for each in (attention.query, attention.new_keys, attention.new_values)
    )
    if attention.query.dtype != ir.DataType.FLOAT:
        return "its type is not float32"
    if not all(isinstance(size, int) for size in (query[1], keys[1], keys[3], values[3])):
        return "its heads have no fixed number or width"
    if keys[3] != values[3] or int(keys[3]) % _WIDTH:
        return f"keys and values need one width, a multiple of {_WIDTH}"
    transposed = only_user(attention.node.outputs[0], "Transpose")
    if transposed is None or only_user(transposed.outputs[0], "Reshape") is None:
        return "its output is not joined from the heads at once"
    return ""


class _Builder:
    """Replaces attention; row lengths, conditions and rotary tables are made once a graph."""

    def __init__(self, graph: ir.Graph, context: BuildContext) -> None:
        self.graph, self.context = graph, context
        self.totals: dict[tuple[ir.Value, str], tuple[ir.Value, ir.Value]] = {}
        self.conditions: dict[str, ir.Value] = {}
        self.tables: dict[ir.Value, ir.Value | None] = {}

    def replace(self, attention: CachedAttention) -> None:
        """Put the operator in place of `attention`, or in a branch beside it."""
        heads = self._heads(attention)
        joined = only_user(attention.node.outputs[0], "Transpose")
        assert joined is not None
        joined = only_user(joined.outputs[0], "Reshape")
        assert joined is not None
        inputs, added = self._inputs(attention, heads)
        node = ir.node(
            "GroupQueryAttention",
            inputs,
            self._attributes(attention, heads),
            domain=CONTRIB,
            num_outputs=3,
        )
        results = [joined.outputs[0], attention.keys.outputs[0], attention.values.outputs[0]]
        for mine, theirs in zip(node.outputs, results, strict=True):
            typed(mine, theirs)
        self.graph.insert_before(attention.keys, added)
        always = self.context.batch_size == 1 or sizes_of(attention.new_keys)[2] == 1
        condition = None if always else self._condition(attention)
        choose(self.graph, condition, node, results, joined)

    def _heads(self, attention: CachedAttention) -> _Heads:
        query = produced_by(attention.query, "RotaryEmbedding")
        keys = produced_by(attention.new_keys, "RotaryEmbedding")
        plain = _Heads(attention.query, attention.new_keys, None)
        if query is None or keys is None or len(query.inputs) != 3:
            return plain
        if list(query.inputs[1:]) != list(keys.inputs[1:]) or _kind(query) != _kind(keys):
            return plain
        if int(sizes_of(attention.query)[3]) % _ROTARY_WIDTH:
            return plain
        rotated, rotated_keys, cosines, sines = (
            query.inputs[0],
            keys.inputs[0],
            query.inputs[1],
            query.inputs[2],
        )
        assert rotated is not None and rotated_keys is not None
        assert cosines is not None and sines is not None
        tables = [self._table(attention, value) for value in (cosines, sines)]
        if tables[0] is None or tables[1] is None:
            return plain
        return _Heads(rotated, rotated_keys, (tables[0], tables[1], _kind(query)[0]))

    def _table(self, attention: CachedAttention, value: ir.Value) -> ir.Value | None:
        """Rows of `value` [B, T, R/2] by position, [S, R/2], if positions are all it depends on."""
        if value not in self.tables:
            table = rows_by_position(attention, value, self.context.max_length)
            self.tables[value] = None if table is None else self._store(attention, table)
        return self.tables[value]

    def _store(self, attention: CachedAttention, table: NDArray[Any]) -> ir.Value:
        digest = sha256(table.tobytes()).hexdigest()[:12]
        name = f"{attention.owner}.rotary.{digest}"
        if name not in self.graph.initializers:
            tensor = ir.tensor(table, name=name)
            value = ir.Value(
                name=name,
                shape=ir.Shape(table.shape),
                type=ir.TensorType(tensor.dtype),
                const_value=tensor,
            )
            self.graph.register_initializer(value)
        return self.graph.initializers[name]

    def _inputs(
        self, attention: CachedAttention, heads: _Heads
    ) -> tuple[list[ir.Value | None], list[ir.Node]]:
        sources = (heads.query, heads.keys, attention.new_values)
        packed = packed_source(sources)
        added: list[ir.Node] = []
        data: list[ir.Value | None]
        if packed is not None:
            data = [packed, None, None]
        else:
            data = []
            for source in sources:
                value, nodes = by_token(source)
                data.append(value)
                added += nodes
        last, total = self._totals(attention)
        caches = [attention.keys.inputs[0], attention.values.inputs[0]]
        tables = list(heads.rotary[:2]) if heads.rotary else []
        return [*data, *caches, last, total, *tables], added

    def _attributes(self, attention: CachedAttention, heads: _Heads) -> dict[str, Any]:
        given = attention.node.attributes
        width = int(sizes_of(attention.query)[3])
        scale, softcap = given.get("scale"), given.get("softcap")
        attributes: dict[str, Any] = {
            "num_heads": int(sizes_of(attention.query)[1]),
            "kv_num_heads": int(sizes_of(attention.new_keys)[1]),
            "scale": scale.as_float() if scale is not None else width**-0.5,
            "softcap": softcap.as_float() if softcap is not None else 0.0,
        }
        if heads.rotary:
            attributes |= {"do_rotary": 1, "rotary_interleaved": heads.rotary[2]}
        return attributes

    def _totals(self, attention: CachedAttention) -> tuple[ir.Value, ir.Value]:
        """The index of each row's last entry after the write, and the longest row's entries."""
        key = (attention.lengths, str(sizes_of(attention.new_keys)[2]))
        if key not in self.totals:
            one = constant(ir.tensor(np.array(1, dtype=np.int64)))
            new = size_of_tokens(attention.new_values, 1)
            entries = ir.node("Add", [attention.lengths, new.outputs[0]])
            last = ir.node("Sub", [entries.outputs[0], one.outputs[0]])
            total = ir.node("ReduceMax", [entries.outputs[0]], {"keepdims": 0})
            casts = [ir.node("Cast", [n.outputs[0]], {"to": 6}) for n in (last, total)]
            self.graph.insert_before(attention.keys, [one, new, entries, last, total, *casts])
            self.totals[key] = (casts[0].outputs[0], casts[1].outputs[0])
        return self.totals[key]

    def _condition(self, attention: CachedAttention) -> ir.Value:
        """Whether a call has one row, or one new token a row."""
        key = str(sizes_of(attention.new_keys)[2])
        if key not in self.conditions:
            one = constant(ir.tensor(np.array([1], dtype=np.int64)))
            sizes = [size_of_tokens(attention.new_values, axis) for axis in (0, 1)]
            least = ir.node("Min", [size.outputs[0] for size in sizes])
            equal = ir.node("Equal", [least.outputs[0], one.outputs[0]])
            scalar = ir.node("Squeeze", [equal.outputs[0]])
            self.graph.insert_before(attention.keys, [one, *sizes, least, equal, scalar])
            self.conditions[key] = scalar.outputs[0]
        return self.conditions[key]


def _kind(rotary: ir.Node) -> tuple[int, int]:
    names = ("interleaved", "rotary_embedding_dim")
    found = [rotary.attributes.get(name) for name in names]
    return tuple(0 if each is None else each.as_int() for each in found)  # type: ignore[return-value]
