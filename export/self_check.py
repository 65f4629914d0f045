"""Proof at capture time: the captured graph against the model's own forward, rollback included."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spec_compile.errors import CaptureError
from spec_compile.export.capture import IMPLEMENTATION
from spec_compile.program import Graph, as_function, call

_PREFIX, _BLOCK = 6, 4
# Two rows keep different numbers of the prefix: one rolls back, as after a rejection.
_KEPT = (6, 3)
_TOLERANCE = 1e-3


def check_capture(
    model: PreTrainedModel, graph: Graph, *, vocab_size: int, max_length: int
) -> float:
    """Compare cached, ragged, rolled-back calls of `graph` with full forwards of `model`.

    Args:
        model: what `graph` was captured from.
        graph: the captured graph.
        vocab_size: token ids below it are tried.
        max_length: tokens a row may hold; positions behind it mean nothing.

    Returns:
        The largest difference of logits, relative to the largest logit.

    Raises:
        CaptureError: they differ, so some feature of the model was not captured.
    """
    generator = torch.Generator().manual_seed(0)
    prefix, block = _sizes(max_length)
    tokens = torch.randint(vocab_size, (2, prefix + block), generator=generator)
    kept = [min(keep, prefix) for keep in _KEPT]
    with torch.no_grad():
        captured = _captured_logits(graph, tokens, prefix, block, kept)
        expected = _reference_logits(model, tokens, prefix, block, kept)
    error = float((captured - expected).abs().max() / expected.abs().max().clamp(min=1.0))
    if not error <= _TOLERANCE:
        raise CaptureError(
            f"the captured graph of {type(model).__name__} differs from the model by {error:.1e} "
            "(relative); it uses a feature that cannot be captured"
        )
    return error


def _sizes(max_length: int) -> tuple[int, int]:
    block = min(_BLOCK, max(1, max_length // 3))
    return min(_PREFIX, max_length - block), block


def _captured_logits(
    graph: Graph, tokens: Tensor, prefix: int, block: int, kept: list[int]
) -> Tensor:
    module = as_function(graph)
    caches = {
        spec.name: torch.zeros([2, *spec.shape[1:]], dtype=spec.dtype)  # type: ignore[list-item]
        for spec in graph.inputs
        if spec.is_cache
    }
    zero = torch.zeros(2, dtype=torch.int64)
    first = call(graph, module, _call_inputs(graph, tokens[:, :prefix], zero) | caches)
    caches = {spec.alias_of: first[spec.name] for spec in graph.outputs if spec.alias_of}
    step = _call_inputs(graph, tokens[:, prefix : prefix + block], torch.tensor(kept))
    return call(graph, module, step | caches)["logits"].float()


def _call_inputs(graph: Graph, tokens: Tensor, lengths: Tensor) -> dict[str, Tensor]:
    """The inputs of one call, caches aside; for a tree graph, those of a single text."""
    inputs = {"tokens": tokens, "lengths": lengths}
    if not any(spec.name == "visible" for spec in graph.inputs):
        return inputs
    rows, width = tokens.shape
    slots = int(graph.input("visible").shape[-1])
    return inputs | {
        "positions": lengths[:, None] + torch.arange(width),
        "slot_positions": torch.arange(slots).expand(rows, -1),
        "visible": torch.ones(rows, 1, width, slots, dtype=torch.bool),
    }


def _reference_logits(
    model: PreTrainedModel, tokens: Tensor, prefix: int, block: int, kept: list[int]
) -> Tensor:
    model.set_attn_implementation("eager")
    try:
        rows = []
        for row, keep in enumerate(kept):
            ids = torch.cat([tokens[row, :keep], tokens[row, prefix : prefix + block]])
            logits = model(input_ids=ids[None], use_cache=False).logits
            rows.append(logits[0, keep:].float())
    finally:
        model.set_attn_implementation(IMPLEMENTATION)
    return torch.stack(rows)
