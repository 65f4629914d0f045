"""How our own operators become ONNX: standard opset 24, and a function for sampling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnxscript import values as onnxscript_values
from torch import Tensor, nn

from spec_compile.export.core_aten import lower_branches
from spec_compile.export.type_promotion import promotion_by_metadata
from spec_compile.ops import CACHED_ATTENTION, MOVE_ENTRIES, PROCESS_LOGITS
from spec_compile.sampling import Sampling, process_logits

OPSET_VERSION = 24
DOMAIN = "spec_compile"
PROCESS_LOGITS_NAME = "ProcessLogits"
_OP = onnxscript_values.Opset("", OPSET_VERSION)

Transforms = Callable[[Tensor, Sampling], Tensor]
"""Logits [B, R, V] and sampling options to the law that is sampled."""


def translations() -> Mapping[Callable[..., Any], Callable[..., Any]]:
    """What torch.onnx.export needs to know: our operators, and those of torch that it lacks."""
    _register_schema()
    return {
        CACHED_ATTENTION: _cached_attention,
        MOVE_ENTRIES: _move_entries,
        PROCESS_LOGITS: _process_logits,
        torch.ops.aten.rsub.Scalar: _subtract_from,
    }


def _cached_attention(
    query: Any,
    key: Any,
    value: Any,
    key_cache: Any,
    value_cache: Any,
    lengths: Any,
    mask: Any,
    scale: float,
    softcap: float,
) -> Any:
    new_keys = _OP.TensorScatter(key_cache, key, lengths, axis=2)
    new_values = _OP.TensorScatter(value_cache, value, lengths, axis=2)
    output, *_ = _OP.Attention(query, new_keys, new_values, mask, scale=scale, softcap=softcap)
    return output, new_keys, new_values


def _move_entries(cache: Any, source: Any, destination: Any) -> Any:
    shape = _OP.Concat(
        _OP.Shape(source, start=0, end=1),
        _OP.Shape(cache, start=1, end=2),
        _OP.Shape(source, start=1, end=2),
        _OP.Shape(cache, start=3, end=4),
        axis=0,
    )
    index = _OP.Expand(_OP.Unsqueeze(source, _OP.Constant(value_ints=[1, 3])), shape)
    return _OP.TensorScatter(cache, _OP.GatherElements(cache, index, axis=2), destination, axis=2)


def _process_logits(logits: Any, temperature: Any, top_k: Any, top_p: Any, min_p: Any) -> Any:
    opset = onnxscript_values.Opset(DOMAIN, 1)
    return opset.ProcessLogits(logits, temperature, top_k, top_p, min_p)


def _subtract_from(subtracted: Any, number: float, alpha: float = 1) -> Any:
    assert alpha == 1
    return _OP.Sub(number, subtracted)


@lru_cache(maxsize=1)
def _register_schema() -> None:
    """Tell the onnx package the signature of our function, which is inlined in the end."""
    schema = onnx.defs.OpSchema
    inputs = [
        schema.FormalParameter(name, f"tensor({kind})")
        for name, kind in (
            ("logits", "float"),
            ("temperature", "float"),
            ("top_k", "int64"),
            ("top_p", "float"),
            ("min_p", "float"),
        )
    ]
    outputs = [schema.FormalParameter("probs", "tensor(float)")]
    onnx.defs.register_schema(
        schema(PROCESS_LOGITS_NAME, DOMAIN, 1, inputs=inputs, outputs=outputs)
    )


class _ProcessLogits(nn.Module):
    def __init__(self, transforms: Transforms) -> None:
        super().__init__()
        self.transforms = transforms

    def forward(self, logits: Tensor, *options: Tensor) -> Tensor:
        return self.transforms(logits, Sampling(*options))


def process_logits_function(
    vocab_size: int, transforms: Transforms = process_logits
) -> ir.Function:
    """The sampling transforms for a vocabulary of `vocab_size` as an ONNX function."""
    # Earlier traces in this process leave guards on sizes, which a second one would trip over.
    torch.compiler.reset()
    row, rows = torch.export.Dim("B"), torch.export.Dim("R")
    options = tuple(
        torch.ones(3, dtype=dtype)
        for dtype in (torch.float32, torch.int64, torch.float32, torch.float32)
    )
    program = torch.export.export(
        _ProcessLogits(transforms),
        (torch.zeros(3, 5, vocab_size), *options),
        dynamic_shapes=({0: row, 1: rows}, ({0: row},) * len(options)),
        strict=False,
    )
    with promotion_by_metadata():
        exported = torch.onnx.export(
            lower_branches(program),
            dynamo=True,
            optimize=True,
            opset_version=OPSET_VERSION,
            verbose=False,
        )
    assert exported is not None
    graph = exported.model.graph
    _initializers_to_constants(graph)
    _forget_symbolic_sizes(graph)
    name = f"{PROCESS_LOGITS_NAME}{vocab_size}"
    return ir.Function(DOMAIN, name, "", graph=graph, attributes=[])


def _initializers_to_constants(graph: ir.Graph) -> None:
    """A function holds no initializers: each becomes a Constant node at the top."""
    for name, value in list(graph.initializers.items()):
        node = ir.node("Constant", [], {"value": value.const_value})
        ir.convenience.replace_all_uses_with(value, node.outputs[0])
        del graph.initializers[name]
        graph.insert_before(graph[0], node)


def _forget_symbolic_sizes(graph: ir.Graph) -> None:
    """Each use has sizes of its own; a name shared by all of them would claim they are equal."""
    values = [*graph.inputs, *(v for node in graph.all_nodes() for v in node.outputs)]
    for value in values:
        if value.shape is not None:
            sizes = [size if isinstance(size, int) else None for size in value.shape]
            value.shape = ir.Shape(sizes)
