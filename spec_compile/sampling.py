"""Logits to the law that is sampled, and a law to a token: pure tensor functions for the graph.

Everything here exports to standard ONNX with symbolic rows. Engines are slow at cumulative sums
and argmax over a whole vocabulary, so those go in two levels: over blocks of the vocabulary, then
inside one block. What needs a sort sits behind a branch that runs only when a row asks for it.
The NumPy twin is `spec_compile.runtime.sampling`.

Ties are broken the same way everywhere: the lowest token id wins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 256
WINDOWS = (128, 4096)
_SMALLEST_TEMPERATURE = 1e-30


class Sampling(NamedTuple):
    """Sampling options of each row, all of shape [B].

    Attributes:
        temperature: float; 0 is greedy (a one-hot law at the lowest-id argmax).
        top_k: integer; keep the k most probable tokens; 0 keeps all.
        top_p: float in (0, 1]; keep the smallest set of that mass; 1 keeps all.
        min_p: float in [0, 1]; keep tokens at least this fraction of the largest; 0 keeps all.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor


def process_logits(logits: Tensor, sampling: Sampling) -> Tensor:
    """Turn logits into the probabilities that are sampled.

    Temperature, then top-k, top-p (which keeps the token that crosses the mass) and min-p, each
    over the tokens that the one before left, renormalised. Computed in float32 whatever the
    input. A logit of -inf has probability exactly 0. Top-k keeps exactly k tokens: of equal
    logits those of lowest id, and the same for top-p.

    Args:
        logits: [B, R, V], any float type: R positions of each row.
        sampling: options per row.

    Returns:
        [B, R, V] float32, each position summing to 1.
    """
    temperature = sampling.temperature[:, None, None].float()
    greedy = temperature <= 0
    divisor = torch.where(greedy, 1.0, temperature.clamp(min=_SMALLEST_TEMPERATURE))
    scaled = logits.float() * divisor.reciprocal()
    top_k = sampling.top_k[:, None, None].clamp(min=0, max=logits.shape[-1]).float()
    top_p = sampling.top_p[:, None, None].float()
    min_p = sampling.min_p[:, None, None].float()
    sorts = (top_k > 0) | (top_p < 1)
    cut = _find_cut(scaled, top_k, top_p, ~sorts)
    plain = ~(greedy | sorts | (min_p > 0))
    return _branch(plain.all(), _softmax, _not_plain, (scaled, cut, min_p, greedy))


def sample(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Draw one token per row by the inverse of the cumulative distribution.

    Never returns a token of zero mass, nor V: rounding at either end falls on a token that has
    mass. The weights need not sum to 1. A row without any mass (or with NaN) gives some id.

    Args:
        probs: [B, V] non-negative weights.
        uniforms: [B] in [0, 1).

    Returns:
        [B] int64 token ids.
    """
    weights = probs if probs.dtype == torch.float64 else probs.float()
    vocab_size = weights.shape[-1]
    blocks = _blocks(weights, 0.0)
    masses = blocks.sum(dim=-1)
    point = uniforms[:, None].to(weights.dtype) * masses.cumsum(dim=-1)[:, -1:]
    block, inside = _locate(masses, point)
    token, _ = _locate(_take_block(blocks, block), inside)
    return (block * blocks.shape[-1] + token).clamp(max=vocab_size - 1)


def argmax(scores: Tensor) -> Tensor:
    """Index of the largest score, the lowest of equals: [..., V] to [...] int64."""
    vocab_size = scores.shape[-1]
    blocks = _blocks(scores.reshape(-1, vocab_size), -torch.inf)
    block = blocks.amax(dim=-1).argmax(dim=-1)
    token = _take_block(blocks, block).argmax(dim=-1)
    found = (block * blocks.shape[-1] + token).clamp(max=vocab_size - 1)
    return found.reshape(scores.shape[:-1])


def _branch(
    predicate: Tensor,
    when_true: Callable[..., Tensor],
    when_false: Callable[..., Tensor],
    operands: tuple[Tensor, ...],
) -> Tensor:
    """One of two functions: a graph branch under export, a plain `if` otherwise."""
    if torch.compiler.is_exporting() or torch.compiler.is_compiling():
        chosen: Tensor = torch.cond(predicate, when_true, when_false, operands)
        return chosen
    return when_true(*operands) if bool(predicate) else when_false(*operands)


def _softmax(scaled: Tensor, *_: Tensor) -> Tensor:
    return torch.softmax(scaled, dim=-1)


def _not_plain(scaled: Tensor, cut: Tensor, min_p: Tensor, greedy: Tensor) -> Tensor:
    return _branch(greedy.all(), _one_hot, _filtered, (scaled, cut, min_p, greedy))


def _one_hot(scaled: Tensor, *_: Tensor) -> Tensor:
    return torch.zeros_like(scaled).scatter(-1, argmax(scaled)[..., None], 1.0)


def _filtered(scaled: Tensor, cut: Tensor, min_p: Tensor, greedy: Tensor) -> Tensor:
    """Probabilities of what the cut and min-p leave; greedy rows are one-hot."""
    floor = scaled.amax(dim=-1, keepdim=True) + min_p.log()
    # A floor above the cut makes the cut's ties moot; a floor at the cut does not.
    tied = (cut[..., 2:3] > 0) & (cut[..., 0:1] >= floor)
    # Nothing of a greedy row passes an infinite value: its one-hot law is written below.
    value = torch.where(greedy, torch.inf, torch.maximum(cut[..., 0:1], floor))
    operands = (scaled, value, cut[..., 1:2], tied)
    mask = _branch(tied.any(), _mask_first_ties, _mask, operands)
    kept = torch.softmax(scaled, dim=-1) * mask
    probs = kept * torch.where(greedy, 1.0, kept.sum(dim=-1, keepdim=True)).reciprocal()
    # Not a softmax over huge gaps: exponentials that underflow cost ten times the others.
    best = argmax(scaled)[..., None]
    return probs.scatter(-1, best, torch.where(greedy, 1.0, probs.gather(-1, best)))


def _mask(scaled: Tensor, value: Tensor, *_: Tensor) -> Tensor:
    return (scaled >= value).float()


def _mask_first_ties(scaled: Tensor, value: Tensor, ties: Tensor, tied: Tensor) -> Tensor:
    equal = scaled == value
    first = (equal.float().cumsum(dim=-1) <= ties) | ~tied
    return ((scaled > value) | (equal & first)).float()


def _find_cut(scaled: Tensor, top_k: Tensor, top_p: Tensor, unused: Tensor) -> Tensor:
    """Where top-k and top-p cut each position, from as few of the largest logits as will do.

    Returns:
        [B, R, 4] float32: the smallest logit that stays (-inf: all stay), how many of those equal
        to it stay, whether others equal to it go, whether the cut was found.
    """
    nothing = torch.tensor([-torch.inf, 0.0, 0.0, 0.0], device=scaled.device)
    cut = nothing.expand(scaled.shape[0], scaled.shape[1], 4)
    found = unused
    for window in (*(w for w in WINDOWS if w < scaled.shape[-1]), scaled.shape[-1]):

        def search(
            _: Tensor, scaled: Tensor, top_k: Tensor, top_p: Tensor, window: int = window
        ) -> Tensor:
            return _cut(scaled, top_k, top_p, window)

        cut = _branch(found.all(), _clone, search, (cut, scaled, top_k, top_p))
        found = (cut[..., 3:] > 0) | unused
    return cut


def _clone(cut: Tensor, *_: Tensor) -> Tensor:
    return cut.clone()


def _cut(scaled: Tensor, top_k: Tensor, top_p: Tensor, window: int) -> Tensor:
    """The cut among the `window` largest logits; see `_find_cut`."""
    largest = torch.topk(scaled, window, dim=-1).values
    peak = torch.softmax(scaled, dim=-1).amax(dim=-1, keepdim=True)
    position = torch.arange(window, device=scaled.device, dtype=torch.float32)
    limited = top_k > 0
    inside = (position < top_k) | ~limited
    probs = (largest - largest[..., :1]).exp() * peak * inside.float()
    cumulative = probs.cumsum(dim=-1)
    mass = torch.where(limited, cumulative[..., -1:], 1.0)
    before = torch.nn.functional.pad(cumulative[..., :-1], (1, 0))
    keep = (inside & ((before < top_p * mass) | (top_p >= 1) | (position < 1))).float()
    count = keep.sum(dim=-1, keepdim=True)
    last = largest.gather(-1, count.long() - 1)
    equal = (largest == last).float()
    ties = (equal * keep).sum(dim=-1, keepdim=True)
    active = limited | (top_p < 1)
    tied = active & (equal.sum(dim=-1, keepdim=True) > ties) & (last > -torch.inf)
    value = torch.where(active, last, -torch.inf)
    found = ~active | ((count < window) & (top_k <= window)) | (window == scaled.shape[-1])
    return torch.cat([value, ties, tied.float(), found.float()], dim=-1)


def _blocks(rows: Tensor, fill: float) -> Tensor:
    """[N, V] as [N, V / W, W]; rows are padded when no good block width divides V."""
    vocab_size = rows.shape[-1]
    width = next((w for w in (BLOCK, BLOCK // 2, BLOCK // 4) if vocab_size % w == 0), 0)
    if not width:
        width = min(BLOCK, vocab_size)
        rows = torch.nn.functional.pad(rows, (0, -vocab_size % width), value=fill)
    return rows.reshape(rows.shape[0], -1, width)


def _take_block(blocks: Tensor, block: Tensor) -> Tensor:
    """Row n of block[n]: [N, M, W] and [N] to [N, W], as one selection of whole rows."""
    num_rows, num_blocks, width = blocks.shape
    start = torch.arange(num_rows, device=blocks.device) * num_blocks
    return blocks.reshape(-1, width).index_select(0, start + block)


def _locate(weights: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    """First index whose cumulative weight exceeds `point` [N, 1], and the point inside it.

    Zero weights are never chosen: their edge is 0, which exceeds nothing. When rounding puts the
    point at or past the end, the first index that reaches the end is taken.
    """
    edges = weights.cumsum(dim=-1) * (weights > 0).to(weights.dtype)
    reached = (edges > point) | (edges >= edges.amax(dim=-1, keepdim=True))
    index = reached.int().argmax(dim=-1)
    before = (edges * (~reached).to(weights.dtype)).amax(dim=-1, keepdim=True)
    return index, point - before
