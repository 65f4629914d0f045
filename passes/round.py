"""Tensors that every round shares: sampling inputs, padded blocks, gathered rows."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from spec_compile.acceptance import Rule
from spec_compile.program import Graph, TensorSpec, updated_name
from spec_compile.sampling import Sampling

ROUND_INPUTS = (
    TensorSpec("tokens", torch.int64, ("B", "T")),
    TensorSpec("num_new", torch.int64, ("B",)),
    TensorSpec("lengths", torch.int64, ("B",)),
)


def cache_inputs(graph: Graph) -> tuple[TensorSpec, ...]:
    """The cache inputs of a captured model or of a round."""
    return tuple(spec for spec in graph.inputs if spec.is_cache)


def source_inputs(*graphs: Graph) -> tuple[TensorSpec, ...]:
    """What captured models or rounds read of a source text, each once; nothing without one."""
    found = {spec.name: spec for graph in graphs for spec in graph.inputs if spec.is_source}
    return tuple(found.values())


def sampling_inputs(num_uniforms: int) -> tuple[TensorSpec, ...]:
    """Sampling options per row and `uniforms` [B, num_uniforms]; nothing where none is drawn."""
    if num_uniforms == 0:
        return ()
    return (
        TensorSpec("temperature", torch.float32, ("B",)),
        TensorSpec("top_k", torch.int64, ("B",)),
        TensorSpec("top_p", torch.float32, ("B",)),
        TensorSpec("min_p", torch.float32, ("B",)),
        TensorSpec("uniforms", torch.float32, ("B", num_uniforms)),
    )


def sampling_of(tensors: Mapping[str, Tensor]) -> Sampling:
    """The sampling options among a round's tensors."""
    return Sampling(*(tensors[name] for name in ("temperature", "top_k", "top_p", "min_p")))


def num_uniforms(rule: Rule, num_speculative_tokens: int, num_drafts: int = 1) -> int:
    """Uniforms that `rule` uses per row for drafts of `num_speculative_tokens` tokens each."""
    size = 1
    for extent in rule.uniforms_shape(num_drafts, num_speculative_tokens):
        size *= extent
    return size


def select_rows(values: Tensor, rows: Tensor) -> Tensor:
    """Rows of each batch entry: values [B, T, N], rows [B, R] int64 -> [B, R, N]."""
    batch, length, width = values.shape
    flat = rows + torch.arange(batch)[:, None] * length
    picked = values.flatten(0, 1).index_select(0, flat.flatten())
    return picked.view(batch, rows.shape[1], width)


def fit_vocabulary(logits: Tensor, vocab_size: int) -> Tensor:
    """Logits [..., V'] cut, or padded with -inf, to [..., vocab_size]."""
    missing = vocab_size - logits.shape[-1]
    if missing > 0:
        return torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))
    return logits if missing == 0 else logits[..., :vocab_size]


def are_numbers(logits: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    """False in a row [B] whose target logits, or whose draft's laws, are not numbers.

    Args:
        logits: [B, R, V], the target's.
        tensors: of the round; `draft_probs` and `draft_tokens` where the draft has laws.
    """
    # NaN compares false, and +inf is not below +inf.
    found = logits.sum(dim=(1, 2)) < float("inf")
    if "draft_probs" in tensors:
        drawn = tensors["draft_probs"].gather(-1, tensors["draft_tokens"][..., None])
        found = found & (drawn.flatten(1).sum(dim=1) < float("inf"))
    return found


def written_caches(graph: Graph, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Caches after a call of `graph`, by the names of its inputs."""
    return {spec.alias_of: outputs[spec.name] for spec in graph.outputs if spec.alias_of}


def as_write(caches: Mapping[str, Tensor], write: int) -> dict[str, Tensor]:
    """`caches` as outputs that hold write number `write` of a round."""
    return {updated_name(name, write): cache for name, cache in caches.items()}
