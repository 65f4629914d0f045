"""Block verification (Sun et al. 2024, arXiv 2403.10444): the whole draft is judged together."""

from __future__ import annotations

import torch
from torch import Tensor

from spec_compile.acceptance.base import (
    Rule,
    emit,
    has_mass,
    required,
    take_rows,
    take_tokens,
)
from spec_compile.sampling import sample

_TINY = 1e-30


class Block(Rule):
    """Accept the longest prefix that passes its own test, whatever the shorter ones did; exact.

    With P_i = min(1, P_{i-1} * target / draft) along the draft, the prefix of length i stays with
    probability P_i, the most that any rule can reach that looks at the draft's own path alone:
    never less than `rejection` accepts (theorem 2 of the paper). The first k uniforms test the
    prefixes, the last one draws the token that follows.
    """

    name = "block"
    exact = True

    def __call__(
        self,
        draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        uniforms: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """See `Rule`. Both laws are required."""
        draft_probs, uniforms = required(self.name, draft_probs, uniforms)
        num_drafted = draft_tokens.shape[-1]
        weight = prefix_weights(draft_tokens, draft_probs, target_probs)
        if num_drafted == 0:
            following = sample(target_probs[:, 0], uniforms[:, 0])
            return emit(draft_tokens, following * 0, following)
        passed = uniforms[:, :-1] < _pass_probability(weight, draft_probs, target_probs)
        lengths = torch.arange(1, num_drafted + 1, device=weight.device)
        num_accepted = (passed.long() * lengths).amax(dim=-1)
        law = _following_law(weight, draft_probs, target_probs, num_accepted)
        return emit(draft_tokens, num_accepted, sample(law, uniforms[:, -1]))


def prefix_weights(draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Tensor:
    """P_0 .. P_k of each row: [B, k + 1], in [0, 1]."""
    ratio = take_tokens(target_probs, draft_tokens) / take_tokens(draft_probs, draft_tokens).clamp(
        min=_TINY
    )
    weights = [torch.ones_like(target_probs[:, 0, 0])]
    for index in range(draft_tokens.shape[-1]):
        weights.append((weights[-1] * ratio[:, index]).clamp(max=1))
    return torch.stack(weights, dim=1)


def _pass_probability(weight: Tensor, draft_probs: Tensor, target_probs: Tensor) -> Tensor:
    """Probability [B, k] that the prefix of length 1 .. k passes, given that no longer one did."""
    num_drafted = draft_probs.shape[1]
    inner = [
        _residual(weight[:, i], draft_probs[:, i], target_probs[:, i]).sum(dim=-1)
        for i in range(1, num_drafted)
    ]
    chances = []
    for index, mass in enumerate(inner, start=1):
        # In this order, so that a weight of 1 leaves the mass as it is, however small.
        total = mass + (1 - weight[:, index])
        # Nothing is left over and nothing was missing: the prefix is as good as it can be.
        chances.append(torch.where(total > 0, mass / total.clamp(min=_TINY), 1.0))
    return torch.stack([*chances, weight[:, num_drafted]], dim=1)


def _following_law(
    weight: Tensor, draft_probs: Tensor, target_probs: Tensor, num_accepted: Tensor
) -> Tensor:
    """Weights [B, V] of the token after the accepted prefix."""
    num_drafted = draft_probs.shape[1]
    target_row = take_rows(target_probs, num_accepted)
    draft_row = take_rows(draft_probs, num_accepted.clamp(max=num_drafted - 1))
    factor = weight.gather(1, num_accepted[:, None])[:, 0]
    residual = _residual(factor, draft_row, target_row)
    recovers = (num_accepted < num_drafted)[:, None] & has_mass(residual)
    return torch.where(recovers, residual, target_row)


def _residual(weight: Tensor, draft_row: Tensor, target_row: Tensor) -> Tensor:
    return (weight[:, None] * target_row - draft_row).relu()
