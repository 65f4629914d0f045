"""Speculative sampling by rejection (Chen et al. 2023, arXiv 2302.01318; Leviathan et al. 2023)."""

from __future__ import annotations

from torch import Tensor

from spec_compile.acceptance.base import (
    Rule,
    count_accepted,
    emit,
    require_single_draft,
    take_rows,
    take_tokens,
)
from spec_compile.sampling import sample

# Below this the residual is rounding noise of two equal laws, and no law to draw from.
NO_MASS = 1e-30


class Rejection(Rule):
    """Accept a draft token with probability min(1, target / draft); exact.

    At the first rejection the recovered token comes from the residual max(0, target - draft); when
    all are accepted the bonus token comes from the target's last row. The first k uniforms test
    the draft tokens in order, the last one draws the token that follows.
    """

    name = "rejection"
    exact = True
    uses_draft_probs = True

    def uniforms_shape(self, num_drafts: int, num_speculative_tokens: int) -> tuple[int, ...]:
        """One uniform per draft token and one for the token that follows: (k + 1,)."""
        require_single_draft(self.name, num_drafts)
        return (num_speculative_tokens + 1,)

    def __call__(
        self,
        draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        uniforms: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """See `Rule`. Both laws are required, in float32 or float64."""
        if uniforms is None or draft_probs is None:
            raise TypeError("the rejection rule needs draft_probs and uniforms")
        num_drafted = draft_tokens.shape[-1]
        if num_drafted == 0:
            following = sample(target_probs[:, 0], uniforms[:, 0])
            return emit(draft_tokens, following * 0, following)
        draft_mass = take_tokens(draft_probs, draft_tokens)
        target_mass = take_tokens(target_probs, draft_tokens)
        # Strict, and multiplied out: accepts no token that the target forbids, divides by nothing.
        num_accepted = count_accepted(uniforms[:, :-1] * draft_mass < target_mass)
        law = _following_law(draft_probs, target_probs, num_accepted)
        return emit(draft_tokens, num_accepted, sample(law, uniforms[:, -1]))


def _following_law(draft_probs: Tensor, target_probs: Tensor, num_accepted: Tensor) -> Tensor:
    """Weights [B, V] of the token after the accepted ones: residual, or the target's own row.

    A draft row of zeros after the last draft row makes the bonus token a residual like the
    others; scaling the gathered row by 0 does that without a padded copy of all draft rows. The
    same factor turns a residual without mass into the target's row.
    """
    num_drafted = draft_probs.shape[1]
    target_row = take_rows(target_probs, num_accepted)
    draft_row = take_rows(draft_probs, num_accepted.clamp(max=num_drafted - 1))
    residual_mass = (target_row - draft_row).relu().sum(dim=-1)
    subtract = (num_accepted < num_drafted) & (residual_mass > NO_MASS)
    return (target_row - draft_row * subtract[:, None].to(draft_row.dtype)).relu()
