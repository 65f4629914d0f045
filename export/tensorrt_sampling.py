"""The sampling transforms without a sort and without a branch, which TensorRT cannot build.

TensorRT selects at most 3,840 of the largest values, and its compiler fails on branches inside
branches and on many of them in one graph; nor can a graph with branches always be recorded. So the
cut of top-k and top-p is found by halving an interval of logits until only equal ones are left in
it, in every call. `spec_compile.sampling.process_logits` says what the result is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spec_compile.sampling import Sampling

# A logit so far below the largest one (a probability of 1e-14 of its) counts as this far.
_LOWEST = -32.0
# Halvings of twice that interval: all sums are exact, and what is closer than 2 ** -14 is equal.
_HALVINGS = 20
_SMALLEST_TEMPERATURE = 1e-30


def process_logits_by_halving(logits: Tensor, sampling: Sampling) -> Tensor:
    """`process_logits` for TensorRT: the same law, up to logits that are 6e-5 apart.

    Args:
        logits: [B, R, V], any float type.
        sampling: options per row, each [B].

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
    cut = _find_cut(scaled, top_k, top_p)
    return _filtered(scaled, cut, min_p, greedy)


def _filtered(scaled: Tensor, cut: Tensor, min_p: Tensor, greedy: Tensor) -> Tensor:
    below = _below_peak(scaled)
    inside = _between(below, cut)
    counted = inside.cumsum(dim=-1) <= cut[..., 2:3]
    kept = (below > cut[..., 1:2]).float() + inside * counted.float()
    kept = kept * (scaled >= scaled.amax(dim=-1, keepdim=True) + min_p.log()).float()
    law = torch.softmax(scaled, dim=-1) * kept
    law = law * torch.where(greedy, 1.0, law.sum(dim=-1, keepdim=True)).reciprocal()
    token = torch.arange(scaled.shape[-1])
    peak = (scaled >= scaled.amax(dim=-1, keepdim=True)).float()
    first = torch.where(peak > 0, token, scaled.shape[-1]).amin(dim=-1, keepdim=True)
    return torch.where(greedy, (token == first).float(), law)


def _find_cut(scaled: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Where top-k and top-p cut each position.

    Returns:
        [B, R, 3] float32: an interval of logits (below the largest one) that holds equal ones
        only, its lower end excluded; how many of them stay. What lies above it stays, too.
    """
    below = _below_peak(scaled)
    mass = below.exp()
    by_count = _halve(below, torch.ones_like(below), top_k)
    in_top_k = torch.where(top_k > 0, _mass_kept(below, mass, by_count), mass.sum(-1, keepdim=True))
    by_mass = _halve(below, mass, top_p * in_top_k)
    number = [_number_kept(below, each) for each in (by_count, by_mass)]
    mass_first = (top_p < 1) & ((number[1] < number[0]) | (top_k <= 0))
    cut = torch.where(mass_first, by_mass, by_count)
    everything = torch.full_like(cut, 2 * _LOWEST)
    return torch.where((top_k > 0) | (top_p < 1), cut, everything)


def _halve(below: Tensor, weight: Tensor, wanted: Tensor) -> Tensor:
    """The cut that keeps the fewest of the largest logits whose weights reach `wanted`."""
    low = torch.full_like(below[..., :1] + wanted, 2 * _LOWEST)
    step, above = -2 * _LOWEST, _weight_above(weight)
    for _ in range(_HALVINGS):
        step *= 0.5
        low = low + (above(below, low + step) >= wanted).float() * step
    high = low + step
    inside = _between(below, torch.cat([low, high], dim=-1))
    # All logits inside are equal, so their weights are: the largest is any of them.
    each = (inside * weight).amax(dim=-1, keepdim=True)
    missing = wanted - above(below, high)
    ties = (missing / each.clamp(min=1e-38)).ceil().clamp(min=1.0)
    return torch.cat([low, high, torch.minimum(ties, inside.sum(-1, keepdim=True))], dim=-1)


def _weight_above(weight: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    def above(below: Tensor, threshold: Tensor) -> Tensor:
        return ((below > threshold).float() * weight).sum(dim=-1, keepdim=True)

    return above


def _number_kept(below: Tensor, cut: Tensor) -> Tensor:
    return (below > cut[..., 1:2]).float().sum(dim=-1, keepdim=True) + cut[..., 2:3]


def _mass_kept(below: Tensor, mass: Tensor, cut: Tensor) -> Tensor:
    each = (_between(below, cut) * mass).amax(dim=-1, keepdim=True)
    return _weight_above(mass)(below, cut[..., 1:2]) + cut[..., 2:3] * each


def _between(below: Tensor, cut: Tensor) -> Tensor:
    return ((below > cut[..., 0:1]) & (below <= cut[..., 1:2])).float()


def _below_peak(scaled: Tensor) -> Tensor:
    """Logits relative to the largest of their position, as float32 above _LOWEST."""
    return (scaled - scaled.amax(dim=-1, keepdim=True)).clamp(min=_LOWEST)
