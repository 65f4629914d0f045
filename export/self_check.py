"""Proof at capture time: the captured graph against the model's own forward, rollback included."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from spec_compile.errors import CaptureError
from spec_compile.export.seams import IMPLEMENTATION
from spec_compile.graph_contract import SOURCE_LENGTHS, SOURCE_TOKENS
from spec_compile.program import Graph, as_function, call

_PREFIX, _BLOCK = 6, 4
# Two rows keep different numbers of the prefix: one rolls back, as after a rejection.
_KEPT = (6, 3)
# Source tokens of these rows, for a model with an encoder.
_SOURCES = (5, 3)
_TOLERANCE = 1e-3


def check_capture(
    model: PreTrainedModel,
    graph: Graph,
    *,
    vocab_size: int,
    max_length: int,
    encoder: Graph | None = None,
) -> float:
    """Compare cached, ragged, rolled-back calls of `graph` with full forwards of `model`.

    Args:
        model: what `graph` was captured from.
        graph: the captured graph, of an encoder-decoder model its decoder.
        vocab_size: token ids below it are tried.
        max_length: tokens a row may hold; positions behind it mean nothing.
        encoder: of an encoder-decoder model.

    Returns:
        The largest difference of logits, relative to the largest logit.

    Raises:
        CaptureError: they differ, so some feature of the model was not captured.
    """
    generator = torch.Generator().manual_seed(0)
    prefix, block = _sizes(max_length)
    tokens = torch.randint(vocab_size, (2, prefix + block), generator=generator)
    kept = [min(keep, prefix) for keep in _KEPT]
    sources = [
        torch.randint(vocab_size, (min(width, max_length),), generator=generator)
        for width in (_SOURCES if encoder is not None else ())
    ]
    with torch.no_grad():
        read = _read_sources(encoder, sources) if encoder is not None else {}
        captured = _captured_logits(graph, tokens, (prefix, block), kept, read)
        expected = _reference_logits(model, tokens, (prefix, block), kept, sources)
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


def _read_sources(encoder: Graph, sources: list[Tensor]) -> dict[str, Tensor]:
    """What the decoder reads of padded sources."""
    given = {
        SOURCE_TOKENS: pad_sequence(sources, batch_first=True),
        SOURCE_LENGTHS: torch.tensor([len(source) for source in sources]),
    }
    read = call(encoder, as_function(encoder), given)
    return {**read, SOURCE_LENGTHS: given[SOURCE_LENGTHS]}


def _captured_logits(
    graph: Graph,
    tokens: Tensor,
    sizes: tuple[int, int],
    kept: list[int],
    read: dict[str, Tensor],
) -> Tensor:
    module, (prefix, block) = as_function(graph), sizes
    caches = {
        spec.name: torch.zeros([2, *spec.shape[1:]], dtype=spec.dtype)  # type: ignore[list-item]
        for spec in graph.inputs
        if spec.is_cache
    }
    zero = torch.zeros(2, dtype=torch.int64)
    first = call(graph, module, _call_inputs(graph, tokens[:, :prefix], zero) | read | caches)
    caches = {spec.alias_of: first[spec.name] for spec in graph.outputs if spec.alias_of}
    step = _call_inputs(graph, tokens[:, prefix : prefix + block], torch.tensor(kept))
    return call(graph, module, step | read | caches)["logits"].float()


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
    model: PreTrainedModel,
    tokens: Tensor,
    sizes: tuple[int, int],
    kept: list[int],
    sources: list[Tensor],
) -> Tensor:
    prefix, block = sizes
    model.set_attn_implementation("eager")
    try:
        rows = []
        for row, keep in enumerate(kept):
            ids = torch.cat([tokens[row, :keep], tokens[row, prefix : prefix + block]])[None]
            if sources:
                given = {"input_ids": sources[row][None], "decoder_input_ids": ids}
            else:
                given = {"input_ids": ids}
            rows.append(model(**given, use_cache=False).logits[0, keep:].float())
    finally:
        model.set_attn_implementation(IMPLEMENTATION)
    return torch.stack(rows)
