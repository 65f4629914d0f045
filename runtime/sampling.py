"""NumPy twins of the tensor functions in the graph: the oracle that tests and hosts compare with.

Written for reading, not for speed: whole sorts, whole cumulative sums in float64. Same names, same
arguments, same ties (the lowest token id wins) as `spec_compile.sampling` and the acceptance rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_SMALLEST_TEMPERATURE = 1e-30
_NO_MASS = 1e-30


class Sampling(NamedTuple):
    """Sampling options of each row, all [B]: 0, 0, 1, 0 are greedy, off, off, off."""

    temperature: Floats
    top_k: Ints
    top_p: Floats
    min_p: Floats


def process_logits(logits: Floats, sampling: Sampling) -> npt.NDArray[np.float32]:
    """Logits [B, R, V] to the probabilities that are sampled, float32 [B, R, V].

    Temperature, top-k, top-p, min-p, renormalised; temperature 0 is one-hot at the lowest-id
    argmax.
    """
    table = np.asarray(logits, dtype=np.float32)
    return np.stack([_process_row(table[b], sampling, b) for b in range(table.shape[0])])


def sample(probs: Floats, uniforms: Floats) -> Ints:
    """One token per row of weights [B, V] by inverse CDF; never one without mass, never V."""
    return np.array([_sample_row(w, u) for w, u in zip(probs, uniforms, strict=True)], np.int64)


def argmax(scores: Floats) -> Ints:
    """Index of the largest score, the lowest of equals: [..., V] to [...]."""
    best: Ints = np.argmax(scores, axis=-1).astype(np.int64)
    return best


def greedy(
    draft_tokens: Ints, draft_probs: Floats | None, target_probs: Floats, uniforms: Floats | None
) -> tuple[Ints, Ints]:
    """Accept while the draft token is the target's best; see the rule of the same name."""
    best = argmax(target_probs)
    num_accepted = _count_accepted(draft_tokens == best[:, :-1])
    following = np.take_along_axis(best, num_accepted[:, None], axis=1)[:, 0]
    return _emit(draft_tokens, num_accepted, following)


def rejection(
    draft_tokens: Ints, draft_probs: Floats | None, target_probs: Floats, uniforms: Floats | None
) -> tuple[Ints, Ints]:
    """Accept with probability min(1, target / draft); see the rule of the same name."""
    if uniforms is None or draft_probs is None:
        raise TypeError("the rejection rule needs draft_probs and uniforms")
    batch, num_drafted = draft_tokens.shape
    chosen = draft_tokens[..., None]
    draft_mass = np.take_along_axis(draft_probs, chosen, axis=-1)[..., 0]
    target_mass = np.take_along_axis(target_probs[:, :num_drafted], chosen, axis=-1)[..., 0]
    num_accepted = _count_accepted(uniforms[:, :-1] * draft_mass < target_mass)
    no_draft = np.zeros_like(target_probs[:, :1], dtype=draft_probs.dtype)
    padded = np.concatenate([draft_probs, no_draft], axis=1)
    target_row = target_probs[np.arange(batch), num_accepted]
    residual = np.maximum(target_row - padded[np.arange(batch), num_accepted], 0)
    has_mass = residual.sum(axis=-1, keepdims=True) > _NO_MASS
    following = sample(np.where(has_mass, residual, target_row), uniforms[:, -1])
    return _emit(draft_tokens, num_accepted, following)


RULES: Mapping[str, Callable[[Ints, Floats | None, Floats, Floats | None], tuple[Ints, Ints]]] = (
    MappingProxyType({"greedy": greedy, "rejection": rejection})
)


def _process_row(
    logits: npt.NDArray[np.float32], sampling: Sampling, row: int
) -> npt.NDArray[np.float32]:
    """[R, V] logits of one batch row to its laws."""
    temperature = np.float32(sampling.temperature[row])
    if temperature <= 0:
        one_hot = np.zeros_like(logits)
        one_hot[np.arange(len(logits)), argmax(logits)] = 1
        return one_hot
    inverse = np.float32(1) / np.maximum(temperature, np.float32(_SMALLEST_TEMPERATURE))
    options = (int(sampling.top_k[row]), float(sampling.top_p[row]), float(sampling.min_p[row]))
    return np.stack([_filter(scaled, *options) for scaled in logits * inverse])


def _filter(
    scaled: npt.NDArray[np.float32], top_k: int, top_p: float, min_p: float
) -> npt.NDArray[np.float32]:
    """Scaled logits [V] to the law of one position."""
    order = np.argsort(-scaled, kind="stable")
    ranked = scaled[order].astype(np.float64)
    mass = np.exp(ranked - ranked[0])
    if 0 < top_k < len(mass):
        mass[top_k:] = 0
    if top_p < 1:
        before = np.concatenate([[0.0], np.cumsum(mass)[:-1]])
        mass[(before >= top_p * mass.sum()) & (np.arange(len(mass)) > 0)] = 0
    if min_p > 0:
        mass[ranked < ranked[0] + np.log(min_p)] = 0
    law = np.zeros_like(scaled)
    law[order] = mass / mass.sum()
    return law


def _sample_row(weights: Floats, uniform: np.floating[Any]) -> int:
    cumulative = np.cumsum(weights, dtype=np.float64)
    positive = weights > 0
    reached = positive & (cumulative > float(uniform) * cumulative[-1])
    if reached.any():
        return int(np.argmax(reached))
    return int(np.flatnonzero(positive)[-1]) if positive.any() else 0


def _count_accepted(accepted: Bools) -> Ints:
    still_accepted: Ints = np.cumprod(accepted, axis=-1, dtype=np.int64)
    return np.asarray(still_accepted.sum(axis=-1), dtype=np.int64)


def _emit(draft_tokens: Ints, num_accepted: Ints, following: Ints) -> tuple[Ints, Ints]:
    output = np.full((draft_tokens.shape[0], draft_tokens.shape[1] + 1), -1, dtype=np.int64)
    for row, length in enumerate(num_accepted):
        output[row, :length] = draft_tokens[row, :length]
        output[row, length] = following[row]
    return output, (num_accepted + 1).astype(np.int64)
