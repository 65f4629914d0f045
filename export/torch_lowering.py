"""Graphs as torch.export takes them for AOTInductor: our operators as tensor code, in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.nn.functional import scaled_dot_product_attention

from spec_compile import sampling
from spec_compile.errors import BackendError
from spec_compile.export.backend import BuildContext
from spec_compile.ops import CACHED_ATTENTION, MOVE_ENTRIES, PROCESS_LOGITS
from spec_compile.program import EXAMPLE_SIZES, Graph, as_function, example, first_line


def export_in_place(graph: Graph, context: BuildContext) -> ExportedProgram:
    """`graph` with caches that are written where they are, and are no outputs any more.

    Raises:
        BackendError: torch.export refuses it.
    """
    module = in_place_module(graph)
    limits = {
        "B": (1, context.batch_size),
        "T": (1, context.max_length),
        "J": (0, context.num_speculative_tokens),
    }
    sizes = {**EXAMPLE_SIZES, "J": context.num_speculative_tokens}
    dims = {n: Dim(n, min=low, max=max(sizes[n], high)) for n, (low, high) in limits.items()}
    shapes = tuple(
        {axis: dims[size] for axis, size in enumerate(spec.shape) if isinstance(size, str)}
        for spec in graph.inputs
    )
    examples = tuple(example(spec, sizes) for spec in graph.inputs)
    try:
        with torch.no_grad():
            return torch.export.export(module, examples, dynamic_shapes=(shapes,), strict=False)
    except Exception as error:
        raise BackendError(f"torch.export refused the graph: {first_line(error)}") from error


def in_place_module(graph: Graph) -> nn.Module:
    """`graph` as a module that writes caches where they are; see `returned` for its results."""
    module = as_function(graph)
    assert isinstance(module, fx.GraphModule)
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in _IN_PLACE:
            node.target = _IN_PLACE[node.target]
        elif node.op == "output":
            values = node.args[0]
            node.args = (tuple(values[index] for index in returned(graph)),)
    module.graph.set_codegen(fx.graph.CodeGen())  # plain positions in, a plain tuple out
    module.recompile()
    return _Lowered(module)


def returned(graph: Graph) -> list[int]:
    """Which outputs of `graph` the lowered graph has, in order: all but the caches."""
    return [index for index, spec in enumerate(graph.outputs) if not spec.is_cache]


def cached_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    lengths: Tensor,
    mask: Tensor,
    scale: float,
    softcap: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`spec_compile::cached_attention`, with the caches written in place."""
    _write(key_cache, key, lengths)
    _write(value_cache, value, lengths)
    groups = query.shape[1] // key.shape[1]
    if softcap > 0.0:
        output = _soft_capped(query, key_cache, value_cache, mask, scale, softcap)
    else:
        output = scaled_dot_product_attention(
            query, key_cache, value_cache, attn_mask=mask, scale=scale, enable_gqa=groups > 1
        )
    return output, key_cache, value_cache


def move_entries(cache: Tensor, source: Tensor, destination: Tensor) -> Tensor:
    """`spec_compile::move_entries`, in place; what moves is read before anything is written."""
    index = source[:, None, :, None].expand(-1, cache.shape[1], -1, cache.shape[3])
    _write(cache, cache.gather(2, index), destination)
    return cache


def process_logits(logits: Tensor, *options: Tensor) -> Tensor:
    """`spec_compile::process_logits`."""
    return sampling.process_logits(logits, sampling.Sampling(*options))


_IN_PLACE: Mapping[Any, Callable[..., Any]] = {
    CACHED_ATTENTION: cached_attention,
    MOVE_ENTRIES: move_entries,
    PROCESS_LOGITS: process_logits,
}


def _write(cache: Tensor, entries: Tensor, starts: Tensor) -> None:
    """Put `entries` [B, H, N, D] into the slots of each row that begin at `starts` [B]."""
    rows = torch.arange(cache.shape[0], device=cache.device)[:, None, None]
    heads = torch.arange(cache.shape[1], device=cache.device)[None, :, None]
    steps = torch.arange(entries.shape[2], device=cache.device)
    slots = (starts[:, None] + steps)[:, None, :]
    # Indices on every axis but the last: Inductor then writes the graph's own input, uncopied.
    cache.index_put_((rows, heads, slots), entries)


def _soft_capped(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, softcap: float
) -> Tensor:
    groups = query.shape[1] // keys.shape[1]
    scores = query @ keys.repeat_interleave(groups, dim=1).transpose(-1, -2) * scale
    scores = (softcap * torch.tanh(scores / softcap)).masked_fill(~mask, float("-inf"))
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return weights @ values.repeat_interleave(groups, dim=1)


class _Lowered(nn.Module):
    """A call of the edited module: torch.export wants a forward of its own signature."""

    def __init__(self, body: fx.GraphModule) -> None:
        super().__init__()
        self.body = body

    def forward(self, *tensors: Tensor) -> Any:
        return self.body(*tensors)
