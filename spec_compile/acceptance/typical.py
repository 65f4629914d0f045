"""Typical acceptance (Medusa: Cai et al. 2024, arXiv 2401.10774, section 3.3)."""

from __future__ import annotations

import math

from torch import Tensor

from spec_compile.acceptance.base import (
    Drafting,
    Rule,
    count_accepted,
    emit,
    require_single_draft,
    take_rows,
    take_tokens,
)
from spec_compile.sampling import sample


class Typical(Rule):
    """Accept a draft token that the target finds probable enough; approximate.

    The bar is min(floor, scale * exp(-entropy)) of the target's law, entropy in nats: where the
    target is sure of itself only its likely tokens pass, where it is not many do. The token that
    follows is drawn from the target. At temperature 0 the output is the target's greedy one.

    Args:
        floor: the bar where the target is sure; Medusa's epsilon.
        scale: of the bar where it is not; Medusa's delta, by default the root of the floor.
    """

    name = "typical"
    exact = False
    drafting = Drafting.GREEDY

    def __init__(self, floor: float = 0.09, scale: float | None = None) -> None:
        self.floor, self.scale = floor, math.sqrt(floor) if scale is None else scale

    def uniforms_shape(self, num_drafts: int, num_speculative_tokens: int) -> tuple[int, ...]:
        """One uniform for the token that follows: (1,)."""
        require_single_draft(self.name, num_drafts)
        return (1,)

    def __call__(
        self,
        draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        uniforms: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """See `Rule`; `draft_probs` is ignored."""
        if uniforms is None:
            raise TypeError("the typical rule needs uniforms")
        laws = target_probs[:, : draft_tokens.shape[-1]]
        # A probability of 0 times its clamped logarithm is 0.
        entropy = -(laws * laws.clamp(min=1e-30).log()).sum(dim=-1)
        bar = (self.scale * (-entropy).exp()).clamp(max=self.floor)
        num_accepted = count_accepted(take_tokens(target_probs, draft_tokens) > bar)
        following = sample(take_rows(target_probs, num_accepted), uniforms[:, 0])
        return emit(draft_tokens, num_accepted, following)
