"""What a small part of a graph computes, found by running it at compile time.

Masks and rotary tables are the model's own arithmetic on positions. Rather than recognising one
architecture's way of writing it, a lowering runs it for the positions that matter and looks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from spec_compile.export.cpu.cached_attention import CachedAttention, sizes_of

_MAX_ELEMENTS = 1 << 25
_MAX_WEIGHT_BYTES = 1 << 22


class NotAFunctionOfPositions(Exception):
    """The value depends on more than positions; the message says on what."""


@dataclass(frozen=True)
class Positions:
    """Rows to compute for: row b holds `lengths[b]` entries and feeds `num_new` tokens.

    Args:
        lengths: [n] int64.
        num_new: new tokens of every row.
    """

    lengths: NDArray[np.int64]
    num_new: int

    def of_queries(self) -> NDArray[np.int64]:
        """The position of every new token, [n, num_new]."""
        return self.lengths[:, None] + np.arange(self.num_new)


def sample_positions(attention: CachedAttention, width: int) -> Positions:
    """Lengths from 0 to the last that fits, all of them unless that is too much to compute.

    Args:
        attention: whose positions.
        width: elements of the computed value per position.
    """
    num_new = extra_tokens(attention) + 1
    last = attention.slots - num_new
    count = min(last + 1, max(2, _MAX_ELEMENTS // (num_new * width)))
    lengths = np.unique(np.linspace(0, last, count).round().astype(np.int64))
    return Positions(lengths, num_new)


def all_positions(attention: CachedAttention) -> Positions:
    """One row for every slot."""
    return Positions(np.arange(attention.slots, dtype=np.int64), extra_tokens(attention) + 1)


def evaluate(value: ir.Value, attention: CachedAttention, positions: Positions) -> NDArray[Any]:
    """`value` for the given lengths of the caches of `attention`.

    Raises:
        NotAFunctionOfPositions: it depends on tokens, or on sizes that lengths do not fix.
    """
    sizes = sizes_of_call(attention, len(positions.lengths), positions.num_new)
    (result,) = compute([value], {attention.lengths: positions.lengths}, sizes)
    return result


def compute(
    values: Sequence[ir.Value],
    given: Mapping[ir.Value, NDArray[np.int64]],
    sizes: Mapping[str, int],
) -> list[NDArray[Any]]:
    """`values` from those that are `given`, with `sizes` for the symbols in shapes.

    Raises:
        NotAFunctionOfPositions: one depends on more, or on nothing.
    """
    feeds: dict[str, NDArray[Any]] = {str(value.name): array for value, array in given.items()}
    nodes: list[ir.Node] = []
    weights: dict[str, NDArray[Any]] = {}
    wanted = [value for value in values if value not in given]
    for each in _ancestors(wanted, given):
        if isinstance(each, ir.Value):
            weights[str(each.name)] = _weight(each)
        elif each.op_type == "Shape":
            feeds[str(each.outputs[0].name)] = _shape(each, sizes)
        else:
            nodes.append(each)
    if not nodes:
        names = ", ".join(str(value.name) for value in values)
        raise NotAFunctionOfPositions(f"{names} does not depend on positions")
    results = iter(_run(nodes, weights, feeds, [str(value.name) for value in wanted]))
    return [given[value] if value in given else next(results) for value in values]


def _ancestors(
    values: Sequence[ir.Value], ends: Collection[ir.Value]
) -> Iterator[ir.Node | ir.Value]:
    """Nodes and weights that lead to `values`, in order; nothing before `ends` or a `Shape`."""
    seen: set[int] = set()
    stack = [(value, False) for value in values]
    while stack:
        current, done = stack.pop()
        producer = current.producer()
        key = id(current if producer is None else producer)
        if done:
            yield current if producer is None else producer
            continue
        if current in ends or key in seen:
            continue
        seen.add(key)
        stack.append((current, True))
        if producer is None:
            if current.const_value is None:
                raise NotAFunctionOfPositions(f"it depends on {current.name}")
        elif producer.op_type != "Shape":
            if any(each.type == ir.AttributeType.GRAPH for each in producer.attributes.values()):
                raise NotAFunctionOfPositions(f"it depends on a branch, {producer.op_type}")
            stack.extend((each, False) for each in producer.inputs if each is not None)


def _weight(value: ir.Value) -> NDArray[Any]:
    tensor = value.const_value
    assert tensor is not None
    if tensor.nbytes > _MAX_WEIGHT_BYTES:
        raise NotAFunctionOfPositions(f"it depends on the weight {value.name}")
    return tensor.numpy()


def extra_tokens(attention: CachedAttention) -> int:
    """Tokens that a call feeds besides its T: draft tokens; 0 for one token a call.

    Of any number of draft tokens, one is looked at.
    """
    size = sizes_of(attention.new_keys)[2]
    if isinstance(size, int):
        return size - 1
    found = re.fullmatch(r"\w+ \+ (\w+)", size)
    if not found:
        return 0
    return int(found.group(1)) if found.group(1).isdecimal() else 1


def sizes_of_call(attention: CachedAttention, rows: int, num_new: int) -> dict[str, int]:
    """What the symbols in shapes stand for when `rows` rows feed `num_new` tokens each."""
    batch, _, tokens, _ = sizes_of(attention.new_keys)
    sizes = {"B": rows, str(batch): rows}
    if isinstance(tokens, str):
        symbols = [name for name in tokens.split(" + ") if not name.isdecimal()]
        sizes |= dict.fromkeys(symbols, 1)
        new = "T" if "T" in symbols else symbols[0]
        sizes[new] = sizes["T"] = num_new - extra_tokens(attention)
        sizes[tokens] = num_new
    return sizes


def _shape(node: ir.Node, sizes: Mapping[str, int]) -> NDArray[Any]:
    source = node.inputs[0]
    assert source is not None
    dims = [sizes.get(d, -1) if isinstance(d, str) else d for d in sizes_of(source)]
    start, end = (node.attributes.get(name) for name in ("start", "end"))
    chosen = dims[start.as_int() if start else 0 : end.as_int() if end else None]
    if not chosen or -1 in chosen:
        raise NotAFunctionOfPositions(f"it depends on the size of {source.name}")
    return np.array(chosen, dtype=np.int64)


def _run(
    nodes: list[ir.Node],
    weights: dict[str, NDArray[Any]],
    feeds: dict[str, NDArray[Any]],
    outputs: Sequence[str],
) -> list[NDArray[Any]]:
    def info(name: str, array: NDArray[Any] | None) -> onnx.ValueInfoProto:
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype) if array is not None else 1
        return onnx.helper.make_tensor_value_info(name, kind, None)

    graph = onnx.helper.make_graph(
        [ir.serde.serialize_node(node) for node in nodes],
        "part",
        [info(name, array) for name, array in feeds.items()],
        [info(output, None) for output in outputs],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 24)])
    try:
        results = ReferenceEvaluator(model).run(None, feeds)
    except Exception as error:
        raise NotAFunctionOfPositions(f"it could not be computed: {error}") from error
    return [np.asarray(result) for result in results]
