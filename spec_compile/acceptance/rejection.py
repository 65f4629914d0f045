"""Speculative sampling by rejection (Chen et al. 2023, arXiv 2302.01318; Leviathan et al. 2023)."""

from __future__ import annotations

import torch
from torch import Tensor

from spec_compile.acceptance.base import (
    Rule,
    count_accepted,
    emit,
    has_mass,
    required,
    take_rows,
    take_tokens,
)
from spec_compile.sampling import sample


class Rejection(Rule):
    """Accept a draft token with probability min(1, target / draft); exact.

    At the first rejection the recovered token comes from the residual max(0, target - draft); when
    all are accepted the bonus token comes from the target's last row. The first k uniforms test
    the draft tokens in order, the last one draws the token that follows.
    """

    name = "rejection"
    exact = True
    symbolic_length = True

    def chance(self, draft_mass: Tensor, uniforms: Tensor) -> Tensor:
        """What a token's target mass has to exceed: all [B, k]."""
        return uniforms * draft_mass

    def __call__(
        self,
        draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        uniforms: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """See `Rule`. Both laws are required, in float32 or float64."""
        draft_probs, uniforms = required(self.name, draft_probs, uniforms)
        num_drafted = draft_tokens.shape[-1]
        if draft_probs.shape[1] == 0:
            following = sample(target_probs[:, 0], uniforms[:, 0])
            return emit(draft_tokens, following * 0, following)
        draft_mass = take_tokens(draft_probs, draft_tokens)
        target_mass = take_tokens(target_probs, draft_tokens)
        # Strict, and multiplied out: accepts no token that the target forbids, divides by nothing.
        num_accepted = count_accepted(
            self.chance(draft_mass, uniforms[:, :num_drafted]) < target_mass
        )
        law = _following_law(draft_probs, target_probs, num_accepted)
        return emit(draft_tokens, num_accepted, sample(law, uniforms[:, num_drafted]))


def _following_law(draft_probs: Tensor, target_probs: Tensor, num_accepted: Tensor) -> Tensor:
    """Weights [B, V] of the token after the accepted ones: residual, or the target's own row.

    A draft row of zeros after the last draft row makes the bonus token a residual like the
    others; blanking the gathered row does that without a padded copy of all draft rows, whatever
    stands behind those of this round. So does a residual without mass become the target's row.
    """
    num_drafted = target_probs.shape[1] - 1
    target_row = take_rows(target_probs, num_accepted)
    draft_row = take_rows(draft_probs, num_accepted.clamp(max=draft_probs.shape[1] - 1))
    subtract = (num_accepted < num_drafted)[:, None] & has_mass((target_row - draft_row).relu())
    return (target_row - torch.where(subtract, draft_row, 0.0)).relu()
