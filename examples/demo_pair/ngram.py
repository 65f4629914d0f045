"""Count-based baselines: what a language model has to beat before it deserves the name."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from examples.demo_pair.vocabulary import VOCAB_SIZE, TokenStream

Counts = NDArray[np.int64]
Probs = NDArray[np.float64]


class _Order:
    """Counts of one n-gram order with absolute discounting (codes have base `VOCAB_SIZE`)."""

    def __init__(self, codes: Counts, counts: Counts) -> None:
        self.codes, self.counts = codes, counts
        once, twice = int((counts == 1).sum()), int((counts == 2).sum())
        self.discount = once / max(once + 2 * twice, 1)
        contexts, starts = np.unique(codes // VOCAB_SIZE, return_index=True)
        self.contexts = contexts
        self.totals = np.add.reduceat(counts, starts)
        self.kinds = np.diff(np.append(starts, len(codes)))

    def interpolate(self, codes: Counts, lower: Probs) -> Probs:
        """Probability of each n-gram's last token, given what the lower order says."""
        total = _lookup(self.contexts, self.totals, codes // VOCAB_SIZE)
        kinds = _lookup(self.contexts, self.kinds, codes // VOCAB_SIZE)
        count = _lookup(self.codes, self.counts, codes)
        seen = np.maximum(total, 1)
        kept = np.maximum(count - self.discount, 0.0) / seen
        probs: Probs = np.where(total > 0, kept + self.discount * kinds / seen * lower, lower)
        return probs


def unigram_loss(train: TokenStream, held_out: TokenStream) -> float:
    """Mean negative log-likelihood (nats per token) of add-one unigram counts."""
    counts = np.bincount(train, minlength=VOCAB_SIZE) + 1.0
    return float(-np.log(counts / counts.sum())[held_out[1:]].mean())


def kneser_ney_loss(train: TokenStream, held_out: TokenStream, order: int = 5) -> float:
    """Mean negative log-likelihood (nats per token) of an interpolated Kneser-Ney model.

    Kneser and Ney, "Improved backing-off for m-gram language modeling" (1995), in the interpolated
    form of Chen and Goodman (1998): counts at the highest order, kinds of left context below it.
    """
    probs: Probs = np.full(len(held_out) - 1, 1.0 / VOCAB_SIZE)
    for size in range(1, order + 1):
        codes, counts = np.unique(_grams(train, size), return_counts=True)
        if size < order:
            kinds = np.unique(_grams(train, size + 1)) % VOCAB_SIZE**size
            codes, counts = np.unique(kinds, return_counts=True)
        level = _Order(codes, counts.astype(np.int64))
        # The first tokens have a short history: they stay with the orders they can fill.
        skip = max(size - 2, 0)
        grams = _grams(held_out, size)[-(len(held_out) - 1 - skip) :]
        probs[skip:] = level.interpolate(grams, probs[skip:])
    return float(-np.log(probs).mean())


def _grams(stream: TokenStream, size: int) -> Counts:
    """Every run of `size` tokens as one number, the last token in the lowest digit."""
    codes: Counts = np.zeros(len(stream) - size + 1, dtype=np.int64)
    for offset in range(size):
        codes = codes * VOCAB_SIZE + stream[offset : offset + len(codes)]
    return codes


def _lookup(keys: Counts, values: Counts, wanted: Counts) -> Counts:
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    found: Counts = np.where(keys[at] == wanted, values[at], 0)
    return found
