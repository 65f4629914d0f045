"""NumPy twins of the tensor functions in the graph: the oracle that tests and hosts compare with.

Written for reading, not for speed: whole sorts, whole cumulative sums in float64. Same names, same
arguments, same ties (the lowest token id wins) as `spec_compile.sampling`; the twins of the
acceptance rules are in `spec_compile.runtime.acceptance`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]

_SMALLEST_TEMPERATURE = 1e-30


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
